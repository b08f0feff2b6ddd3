"""One artifact cache for all tests of this folder, so that nothing touches the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def artifact_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEC_CACHE", str(tmp_path_factory.mktemp("artifacts")))
        yield
