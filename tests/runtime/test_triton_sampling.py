"""The sampling kernels in interpreter mode on small vocabularies: ids equal those of sampler.py, whatever the mix of rows, step after step."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from sparsec_runtime.gpu.kernels.sample import COUNT, CUT
from sparsec_runtime.gpu.sampling import RowSampling, SampleBuffers, SampleSizes
from sparsec_runtime.sampler import SamplingBatch, SamplingParams, _distribution, sample

from sparsec.bench.draws import drawn, greedy

SMALL = SampleSizes(part=64, group=8, listed=64, tile=16, words=4)  # more parts than one, more candidates than the list holds
VOCAB = 150


def both(logits, rows, sizes=SMALL, steps=1):
    """Ids [step, row] of the kernels, and of sampler.py; each step's ids are the next one's history."""
    buffers = SampleBuffers(len(rows), logits.shape[-1], logits.device, sizes)
    buffers.set(rows)
    ids = torch.zeros(len(rows), dtype=torch.int64)
    histories = [(list(row.prompt), list(row.generated)) for row in rows]
    found, wanted = [], []
    for step in range(steps):
        now = logits.roll(step, dims=-1)
        buffers.launch(now, ids, penalties=any(row.params.penalised for row in rows), chain={})
        found.append(ids.tolist())
        wanted.append(sample(now, [row.params for row in rows], histories, [len(made) for _, made in histories])[0].tolist())
        for (_, made), token in zip(histories, wanted[-1]):
            made.append(token)
    return found, wanted


def random(rows, vocab=VOCAB, seed=0, width=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * width


MIXES = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "hot": {"temperature": 1e9},
    "cold": {"temperature": 1e-320},
    "top_k": {"temperature": 1.0, "top_k": 7},
    "top_k of more than there are groups": {"temperature": 1.0, "top_k": 90},
    "top_k of all": {"temperature": 1.0, "top_k": 5000},
    "top_k 1": {"temperature": 2.0, "top_k": 1},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_p, flat": {"temperature": 30.0, "top_p": 0.97},
    "top_p next to nothing": {"temperature": 1.0, "top_p": 1e-12},
    "top_p next to 1": {"temperature": 1.0, "top_p": 1 - 2**-53},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "both": {"temperature": 1.3, "top_k": 40, "top_p": 0.8},
    "all": {"temperature": 1.3, "top_k": 150, "top_p": 0.95, "min_p": 0.01},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.3, "top_k": 12},
    "all penalties": {"temperature": 0.9, "repetition_penalty": 0.7, "frequency_penalty": 0.9, "presence_penalty": -0.6, "top_p": 0.95},
    "greedy with penalties": {"repetition_penalty": 1.6, "frequency_penalty": 1.5},
}


@pytest.mark.parametrize("name", MIXES)
def test_each_row_gets_the_id_of_the_sampler(name):
    logits = random(2, seed=len(name))
    logits[1] = logits[1].round()  # many are equal
    rows = [RowSampling(SamplingParams(seed=31 * n - 40, **MIXES[name]), prompt=[1, 5, 5, 9 + n], generated=[n, 7, 7]) for n in range(2)]
    found, wanted = both(logits, rows)
    assert found == wanted


def test_a_batch_of_all_kinds_draws_as_the_sampler_does_step_after_step():
    rows = [RowSampling(SamplingParams(seed=n, **params), prompt=[n], generated=[n] * (n % 3)) for n, params in enumerate(MIXES.values())]
    found, wanted = both(random(len(rows), seed=5, width=1.0), rows, steps=2)
    assert found == wanted
    assert len({tuple(step) for step in found}) == 2, "steps draw anew"


def test_a_row_does_not_depend_on_its_mates():
    logits = random(4, seed=9, width=0.5)
    mine = RowSampling(SamplingParams(temperature=1.0, top_p=0.9, seed=3))
    mates = [RowSampling(SamplingParams(seed=n, **MIXES[name])) for n, name in enumerate(("greedy", "both", "top_p, flat"))]
    alone = both(logits[2:3], [mine], steps=2)[0]
    crowded = both(logits, [mates[0], mates[1], mine, mates[2]], steps=2)[0]
    assert [step[2] for step in crowded] == [step[0] for step in alone]


def test_sizes_of_parts_lists_and_tiles_change_nothing():
    logits = random(6, seed=4).round()
    rows = [RowSampling(SamplingParams(seed=n, **MIXES[name])) for n, name in enumerate(("top_k", "top_p", "top_p, flat", "both", "all", "min_p"))]
    narrow = both(logits, rows)[0]
    for sizes in (SampleSizes(part=256, group=256, listed=512, tile=256, words=16), SampleSizes(part=128, group=32, listed=32, tile=8, words=8)):
        assert both(logits, rows, sizes)[0] == narrow


LARGE = SampleSizes(part=1024, group=16, listed=256, tile=64, words=32)
BULK = 1500  # ids: more parts and groups than one, and more candidates than the list holds unless they are narrowed down


def spread(kind):
    """Logits [row, BULK] of a distribution."""
    x = random(3, BULK, seed=6, width=2.0)
    return {
        "as a model's": x,
        "peaked": torch.where(x > 5, x * 4, x),
        "flat": x * 1e-3,
        "coarse": x.bfloat16().float(),
        "many equal": x.round(),
        "all equal": torch.full_like(x, -1.5),
        "half impossible": torch.where(torch.arange(BULK) % 2 > 0, x, -float("inf")),
        "one far above": torch.where(torch.arange(BULK) == 77, 1e30, x),
        "one infinite": torch.where(torch.arange(BULK) == 77, float("inf"), x),
    }[kind]


SPREADS = ("as a model's", "peaked", "flat", "coarse", "many equal", "all equal", "half impossible", "one far above", "one infinite")


MANY = ({"top_k": 700}, {"top_k": 1499}, {"top_k": 150, "top_p": 0.6}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_p": 0.5, "min_p": 0.01},
        {"top_p": 0.9, "temperature": 30.0}, {"top_k": 900, "top_p": 0.9})  # fmt: skip


@pytest.mark.parametrize("kind", SPREADS)
def test_many_kept_ids_are_those_of_the_sampler(kind):
    """Top-k of more than there are groups, and top-p of few, of half and of nearly all ids: every second one, in turn."""
    asked = MANY[SPREADS.index(kind) % 2 :: 2]
    rows = [RowSampling(SamplingParams(seed=m, **{"temperature": 1.0, **one})) for m, one in enumerate(asked)]
    found, wanted = both(spread(kind)[[0, 1, 2, 0]], rows, LARGE)
    assert found == wanted, kind


@pytest.mark.parametrize("params", [{"top_k": 700}, {"top_k": 150, "top_p": 0.8}, {"top_p": 0.9}, {"top_p": 0.99, "temperature": 3.0}, {"top_k": 20, "top_p": 0.9}], ids=str)
def test_exactly_the_kept_weights_are_counted(params):
    """The sum of what is kept, of logits with many ties, not only the id that one draw gives; and it is found in the list, not in the whole vocabulary."""
    logits, asked = spread("coarse"), SamplingParams(**{"temperature": 1.0, "seed": 1, **params})
    buffers = SampleBuffers(3, BULK, logits.device, LARGE)
    buffers.set([RowSampling(asked)] * 3)
    buffers.launch(logits, torch.zeros(3, dtype=torch.int64), penalties=False, chain={})
    kept = _distribution(logits, SamplingBatch.of([asked] * 3, BULK, logits.device))
    parts = torch.nn.functional.pad(kept, (0, -BULK % LARGE.part)).view(3, -1, LARGE.part).sum(-1)
    assert torch.equal(buffers.weights, parts)
    assert int(buffers.found[COUNT].max()) <= LARGE.listed


def test_equal_logits_at_the_threshold_are_kept_from_the_lowest_id():
    logits = torch.zeros(2, BULK)
    logits[:, 500:] = 1.0  # 1,000 that weigh the same, of which 700 are kept
    rows = [RowSampling(SamplingParams(temperature=1.0, seed=n, top_k=700)) for n in range(2)]
    buffers = SampleBuffers(2, BULK, logits.device, LARGE)
    buffers.set(rows)
    buffers.launch(logits, torch.zeros(2, dtype=torch.int64), penalties=False, chain={})
    assert buffers.found[CUT].tolist() == [1199, 1199]
    assert buffers.weights.sum(-1).tolist() == [700 << 40] * 2


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3, "top_p": 0.5}])
def test_a_logit_that_is_no_number_gives_id_minus_1_and_infinite_ones_are_drawn_by_weight(params):
    logits = random(4)
    logits[0, 149] = float("nan")
    logits[1, :149] = -float("inf")
    logits[2, [3, 70]] = float("inf")
    rows = [RowSampling(SamplingParams(seed=n, **params)) for n in range(4)]
    found, wanted = both(logits, rows)
    assert found[0][0] == -1 and found[0][1] == 149 and found[0][2] in (3, 70)
    assert found[0][1:] == wanted[0][1:]


def test_one_number_in_seven_is_drawn_where_seven_weigh_the_same():
    row = RowSampling(SamplingParams(temperature=1.0, top_k=7, seed=11))
    buffers = SampleBuffers(1, 60, torch.device("cpu"), SMALL)
    buffers.set([row])
    ids, drawn = torch.zeros(1, dtype=torch.int64), []
    for _ in range(24):
        buffers.launch(torch.zeros(1, 60), ids, penalties=False, chain={})
        drawn.append(int(ids))
    assert set(drawn) == set(range(7))


def test_the_gates_of_sampling_time_what_chooses_the_ids_of_the_sampler():
    logits, ids, params = random(3, 300).bfloat16(), torch.zeros(3, dtype=torch.int64), {"temperature": 1.0, "top_k": 20, "top_p": 0.9}
    drawn(logits, ids, params)()
    assert torch.equal(ids, sample(logits, [SamplingParams(seed=n, **params) for n in range(3)], steps=[100] * 3)[0])
    greedy(logits, ids)()
    assert torch.equal(ids, logits.float().argmax(-1))


def test_seeds_of_all_64_bits_draw_as_the_sampler_does():
    seeds = (2**63 - 1, -(2**63), 2**32, 0x1234567890ABCDEF, -1)
    found, wanted = both(random(len(seeds), width=0.1), [RowSampling(SamplingParams(temperature=1.0, seed=seed)) for seed in seeds], steps=2)
    assert found == wanted and len(set(found[0])) > 1
