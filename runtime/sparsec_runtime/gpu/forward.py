"""One decode step of the whole model as kernel launches, ten a layer: what a graph captures, and what runs without one.

No tensor is read on the host, and nothing depends on a length but what the buffers hold. Padded batch rows hold 0 rows, write nothing and attend nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ..cache import CacheManager
from ..decode_plan import DecodePlan
from ..models.loading import LoadedModel
from ..storage import Storage
from .blocks import pow2, tile_of
from .buffers import CHOSEN_PAGES, CHOSEN_TOKENS, FIRST_CHOSEN, FIRST_ROWS, K_TAIL, NEWEST_CHOSEN, POSITION, V_TAIL, DecodeBuffers
from .eligible import model_reasons
from .kernels.block import add_rms_norm, begin_step, silu_mul
from .kernels.project import project, project_gated
from .ranking import rank_grouped
from .row_sampling import Draws
from .sampling import launch_greedy
from .tokens import list_tokens, place_tokens
from .tuning import ProjectionTiles, Tuning
from .weights import LayerWeights, fused_weights
from .zones import attend_two_zones

LOG2_E = 1.0 / math.log(2.0)


@dataclass(frozen=True, slots=True)
class StepKind:
    """What a step does besides its layers; a graph is captured for each. asks: an eviction that follows ranks rows by the newest query's probs;
    draws: how ids are chosen, by the largest logit alone or for each row as it asks (sampling.py), with penalties or without."""

    asks: bool = False
    draws: Draws = "greedy"


@dataclass(frozen=True, slots=True, eq=False)
class DecodeForward:
    """Reads a manager's pools and a model's weights; everything that changes from step to step lies in the buffers."""

    model: LoadedModel
    weights: list[LayerWeights]
    storage: Storage
    plan: DecodePlan
    chooses: tuple[bool, ...]  # layers that attend to chosen pages only
    weighs: tuple[bool, ...]  # layers whose mass is added
    lists: tuple[bool, ...]  # layers that list tokens for later ones
    reads: tuple[bool, ...]  # layers that attend to listed tokens only
    tuning: Tuning
    ranked: bool  # positions are counted anew, and the first rows are asked by a query of their own
    kernels: ModuleType  # what the compiler generated for the method

    @property
    def chain(self) -> dict[str, bool]:
        """Launch options of a kernel that may be set up before the last one is done."""
        return {"CHAINED": True, "launch_pdl": True} if self.tuning.chained else {}

    @staticmethod
    def weights_of(model: LoadedModel) -> list[LayerWeights]:
        return fused_weights(model)

    @staticmethod
    def reasons_against(method: type[CacheManager], model: LoadedModel) -> tuple[str, ...]:
        """What of the model, beside its attention, no kernel does."""
        return model_reasons(method, model)

    def __call__(self, buffers: DecodeBuffers, kind: StepKind) -> Tensor:
        """Logits [row, vocab] in the model's dtype; buffers.ids becomes the ids that follow."""
        decoder = self.model.module.model
        self.begin(buffers, decoder.embed_tokens.weight)
        delta = None
        for layer in range(self.model.shape.layers):
            delta = self._layer(layer, delta, buffers, kind)
        self._norm(buffers, delta, decoder.norm.weight)
        logits = F.linear(buffers.normed, self.model.module.lm_head.weight)
        if kind.draws == "greedy":
            launch_greedy(logits, buffers.best, buffers.best_id, buffers.ids, buffers.vocab_part, self.chain)
        else:
            assert buffers.sampling is not None, "no row asked for sampling"
            buffers.sampling.launch(logits, buffers.ids, kind.draws == "penalised", self.chain)
        return logits

    def begin(self, buffers: DecodeBuffers, embedding: Tensor) -> None:
        """buffers.x of the rows' ids from embedding [vocab, hidden], and the angles of their positions."""
        hidden, rope = self.model.shape.hidden, self.storage.rope
        block, half = min(1024, pow2(hidden)), rope.dim // 2
        begin_step[(buffers.rows, triton.cdiv(hidden, block))](
            buffers.ids, buffers.header[POSITION], buffers.held_of(0), embedding, buffers.x, rope.inv_freq, buffers.cos, buffers.sin,
            hidden, rope.scaling, half, buffers.rows, BLOCK=block, HALF=pow2(half), RANKS=self.ranked, **self.chain,
        )  # fmt: skip

    def attention(self, layer: int, qkv: Tensor, buffers: DecodeBuffers, kind: StepKind) -> Tensor:
        """buffers.attended [row, q_head, channel] of qkv [row, (q_heads + 2 kv_heads) * channel] before QK norm and RoPE, with all that hooks do beside it."""
        self._write(layer, qkv, buffers)
        if self.chooses[layer]:
            self._choose(layer, buffers)
        if self.plan.moves is not None:
            scale2 = float(self.model.shape.scale) * LOG2_E
            attend_two_zones(self.kernels, self.storage, layer, buffers, self.tuning, scale2, self._heads(), self.chain)
        else:
            self._attend(layer, buffers, kind)
        return buffers.attended

    def _layer(self, layer: int, delta: Tensor | None, buffers: DecodeBuffers, kind: StepKind) -> Tensor:
        """delta: what the last layer's MLP adds to the residual, or None before the first; returns this one's."""
        w = self.weights[layer]
        self._norm(buffers, delta, w.before_attention)
        attended = self.attention(layer, self._project(buffers.normed, w.qkv, w.qkv_bias), buffers, kind)
        self._norm(buffers, self._project_to_residual(attended.flatten(1), w.out, w.out_bias), w.before_mlp)
        self._gate(buffers, w.gate_up)
        return self._project_to_residual(buffers.active, w.down, None)

    def _gate(self, buffers: DecodeBuffers, gate_up: Tensor) -> None:
        """buffers.active = silu(gate) * up of the normed rows."""
        width = self.model.shape.intermediate
        tiles = self.tuning.tiles_of(gate_up, buffers.rows)
        if tiles is None:
            both = F.linear(buffers.normed, gate_up)
            silu_mul[(buffers.rows, triton.cdiv(width, 1024))](both, buffers.active, width, BLOCK=1024, **self.chain)
            return
        project_gated[(width // tiles.outputs,)](
            buffers.normed, gate_up, buffers.active, buffers.rows, width, DEPTH=gate_up.shape[1], BM=tile_of(buffers.rows),
            BN=tiles.outputs, BK=tiles.depth, STAGES=tiles.stages, num_warps=tiles.warps, **self.chain,
        )  # fmt: skip

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [row, depth] times weight [width, depth], transposed: by our kernel where it was measured to be faster, else by the library."""
        tiles = self.tuning.tiles_of(weight, x.shape[0])
        return F.linear(x, weight, bias) if tiles is None else self._launch(x, weight, bias, tiles, 1, x.dtype)[0]

    def _project_to_residual(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same as [split, row, width] fp32, for `_norm` to add up; [1, row, width] by the library."""
        tiles = self.tuning.tiles_of(weight, x.shape[0])
        if tiles is None or bias is not None:
            return F.linear(x, weight, bias)[None]
        return self._launch(x, weight, None, tiles, tiles.splits, torch.float32)

    def _launch(self, x: Tensor, weight: Tensor, bias: Tensor | None, tiles: ProjectionTiles, splits: int, dtype: torch.dtype) -> Tensor:
        rows, (width, depth) = x.shape[0], weight.shape
        out = torch.empty((splits, rows, width), dtype=dtype, device=x.device)
        project[(width // tiles.outputs, splits)](
            x, weight, weight if bias is None else bias, out, rows, width, DEPTH=depth, BM=tile_of(rows), BN=tiles.outputs, BK=tiles.depth,
            SPLITS=splits, BIAS=bias is not None, STAGES=tiles.stages, num_warps=tiles.warps, **self.chain,
        )  # fmt: skip
        return out

    def _norm(self, buffers: DecodeBuffers, delta: Tensor | None, weight: Tensor) -> None:
        """delta [split, row, width] joins the residual."""
        width = self.model.shape.hidden
        add_rms_norm[(buffers.rows,)](
            buffers.x, buffers.x if delta is None else delta, weight, buffers.normed, width, self.model.shape.rms_eps, buffers.rows,
            SPLITS=0 if delta is None else delta.shape[0], BLOCK=pow2(width), num_warps=8, **self.chain,
        )  # fmt: skip

    def _write(self, layer: int, qkv: Tensor, buffers: DecodeBuffers) -> None:
        storage, shape, w, plan = self.storage, self.model.shape, self.weights[layer], self.plan
        table, table_strides = self._table(layer, buffers)
        keys, values = self._pools(layer)
        options: dict[str, object] = dict(table_strides)
        if self.ranked:
            options |= {"rank_cos_ptr": buffers.cos[1], "rank_sin_ptr": buffers.sin[1], "q_first": buffers.q.numel()}
        if storage.positions is not None:
            options |= {"pos_ptr": buffers.header[POSITION], "row_pos_ptr": storage.positions.of(layer)}
        if plan.mass is not None:
            options[f"state_{plan.mass.state}_ptr"] = self._state(layer)
        if plan.pages is not None:
            low, high = self._bounds(layer)
            options |= {f"summary_{plan.pages.low}_ptr": low, f"summary_{plan.pages.high}_ptr": high}
        held = buffers.held_of(layer)
        if plan.moves is not None:
            held = buffers.header[K_TAIL]
            options |= {"v_table_ptr": buffers.tables[storage.stream_of(plan.moves.zone, "V").name], "v_len_ptr": buffers.header[V_TAIL]}
        self.kernels.write_rows[(buffers.rows, shape.q_heads + 2 * shape.kv_heads)](
            qkv, buffers.q, keys, values, qkv if w.q_norm is None else w.q_norm, qkv if w.k_norm is None else w.k_norm, buffers.cos[0], buffers.sin[0],
            table_ptr=table, len_ptr=held, half=0 if plan.turns_keys else storage.rope.dim // 2, eps=shape.rms_eps, **options,
            HQ=shape.q_heads, H=shape.kv_heads, D=shape.head_dim, DP=pow2(shape.head_dim), PAGE=storage.page_size, NORM=w.q_norm is not None,
            num_warps=1, **self.chain,
        )  # fmt: skip

    def _choose(self, layer: int, buffers: DecodeBuffers) -> None:
        storage, shape = self.storage, self.model.shape
        assert self.plan.pages is not None
        table, table_strides = self._table(layer, buffers)
        held, size = buffers.held_of(layer), self.tuning.bounds
        chunk, tile = self.tuning.bound_pages(shape.kv_heads, buffers.q.dtype)
        items = buffers.rows * triton.cdiv(buffers.pages, chunk)
        self.kernels.bound_pages[(min(items, size.programs * self.tuning.multiprocessors),)](
            buffers.q, *self._bounds(layer), table, held, buffers.header[FIRST_CHOSEN], buffers.header[NEWEST_CHOSEN], buffers.worth,
            buffers.best_worth, worth_row=buffers.worth.shape[2], best_row=buffers.best_worth.shape[2], **table_strides, entries=buffers.rows,
            EP=tile_of(buffers.rows), H=shape.kv_heads, HP=pow2(shape.kv_heads), G=shape.group, QP=tile_of(shape.q_heads), D=shape.head_dim,
            DP=tile_of(shape.head_dim), PAGE=storage.page_size, TILE=tile, CHUNK=chunk, STAGES=size.stages, EXACT=buffers.q.element_size() == 4,
            num_warps=size.warps, **self.chain,
        )  # fmt: skip
        rank_grouped(
            buffers.worth, buffers.best_worth, held, buffers.header[CHOSEN_PAGES], buffers.chosen, unit=storage.page_size, group=tile, options=self.chain
        )

    def _attend(self, layer: int, buffers: DecodeBuffers, kind: StepKind) -> None:
        """Attention over what the layer reads, in chunks, and their merge; then what a hook asks of the newest query's probs."""
        storage, shape, tuning = self.storage, self.model.shape, self.tuning
        table, table_strides = self._table(layer, buffers)
        held, options = buffers.held_of(layer), {"table_ptr": table, **table_strides}
        units = buffers.rows * shape.kv_heads
        kernel, size = self.kernels.attend_rows, tuning.among(tuning.ragged if storage.ragged_heads else tuning.whole, units)
        mass = self.plan.mass if self.weighs[layer] else None
        if self.chooses[layer]:
            kernel, size, held = self.kernels.attend_pages, tuning.picked, buffers.header[CHOSEN_TOKENS]
            options |= {"pages_ptr": buffers.chosen, "pages_row": buffers.chosen.stride(0), "pages_head": buffers.chosen.stride(1)}
        elif self.reads[layer]:
            kernel, size, held = self.kernels.attend_tokens, tuning.picked, buffers.header[CHOSEN_TOKENS]
            options = {"tokens_ptr": buffers.listed, "tokens_row": buffers.listed.stride(0)}
        elif mass is not None or self.lists[layer] or kind.asks:
            kernel, size = self.kernels.attend_rows_and_tell, tuning.among(tuning.weighing, units)
            options |= {"logits_ptr": buffers.logits, "logits_row": buffers.logits.shape[2]}
        if self.plan.turns_keys:
            size, half = tuning.among(tuning.weighing, units), storage.rope.dim // 2
            options |= {"freq_ptr": storage.rope.inv_freq, "turn_ptr": buffers.turn, "scaling": storage.rope.scaling, "HALF": half}
            options["PAIRS"] = tile_of(shape.head_dim // 2)
        firsts = {"first_ptr": buffers.header[FIRST_ROWS]} if self.ranked else {}
        if self.ranked:
            options |= {**firsts, "q_first": buffers.q.numel()}
        entries = held.shape[0]
        common = {"entries": entries, "EP": tile_of(entries)}
        kernel[(min(buffers.part.shape[0], size.programs * tuning.multiprocessors),)](
            buffers.q, *self._pools(layer), len_ptr=held, part_ptr=buffers.part, lse_ptr=buffers.part_lse, scale2=float(shape.scale) * LOG2_E, **options,
            **common, **self._heads(), PAGE=storage.page_size, CHUNK=size.chunk, TILE=size.tile, STAGES=size.stages,
            EXACT=buffers.q.element_size() == 4, **size.launch, **self.chain,
        )  # fmt: skip
        self.kernels.merge_chunks[(buffers.rows, shape.q_heads)](
            buffers.part, buffers.part_lse, held, out_ptr=buffers.attended, row_lse_ptr=buffers.row_lse, **firsts, **common, H=shape.kv_heads, G=shape.group,
            D=shape.head_dim, DP=pow2(shape.head_dim), CHUNK=size.chunk, TILE=32, num_warps=1, **self.chain,
        )  # fmt: skip
        if mass is not None:
            self.kernels.add_mass[(8 * tuning.multiprocessors,)](
                buffers.logits, buffers.row_lse, table, held, self._state(layer), logits_row=buffers.logits.shape[2], **table_strides,
                **common, H=shape.kv_heads, G=shape.group, PAGE=storage.page_size, TILE=512, num_warps=4, **self.chain,
            )  # fmt: skip
        if self.lists[layer]:
            self._list(held, buffers, table)
        if kind.asks:
            self.kernels.ask_newest[(4 * tuning.multiprocessors,)](
                buffers.logits, buffers.row_lse, held, buffers.asked[layer], logits_row=buffers.logits.shape[2], out_row=buffers.asked.stride(1),
                **common, HQ=shape.q_heads, TILE=256, num_warps=4, **self.chain,
            )  # fmt: skip

    def _list(self, held: Tensor, buffers: DecodeBuffers, table: Tensor) -> None:
        """The slots that later layers read, from the logits that attention just told."""
        assert self.plan.tokens is not None
        first, newest, count = (buffers.header[n] for n in (FIRST_CHOSEN, NEWEST_CHOSEN, CHOSEN_TOKENS))
        list_tokens(buffers.logits, held, first, newest, count, buffers.listed, shares=self.plan.tokens.shares, options=self.chain)
        place_tokens(buffers.listed, count, table, self.storage.page_size, options=self.chain)

    def _heads(self) -> dict[str, int]:
        shape = self.model.shape
        return {
            "H": shape.kv_heads, "G": shape.group, "GP": tile_of(shape.group), "D": shape.head_dim, "DP": tile_of(shape.head_dim),
        }  # fmt: skip

    def _table(self, layer: int, buffers: DecodeBuffers) -> tuple[Tensor, dict[str, object]]:
        """The layer's part of the tables, and its strides from row to row and, where heads have tables of their own, from head to head."""
        scope, heads = self.storage.layout.scope, self.storage.heads
        first = {"shared": 0, "layer": layer, "head": layer * heads}[scope]
        strides: dict[str, object] = {"table_row": buffers.table.stride(0)}
        return buffers.table[:, first:], strides | ({"table_head": buffers.table.stride(1)} if scope == "head" else {})

    def _pools(self, layer: int) -> tuple[Tensor, Tensor]:
        zone = self.storage.newest_zone
        return self.storage.stores[zone, "K"].pool(layer), self.storage.stores[zone, "V"].pool(layer)

    def _bounds(self, layer: int) -> tuple[Tensor, Tensor]:
        """Least and greatest keys of each unit [unit, 1, channel]."""
        choice = self.plan.pages
        assert choice is not None, "the step chooses no pages"
        return self.storage.summaries[choice.low][1].of(layer), self.storage.summaries[choice.high][1].of(layer)

    def _state(self, layer: int) -> Tensor:
        """The token state that mass is added to [unit, slot]."""
        assert self.plan.mass is not None, "the step adds no mass"
        return self.storage.token_states[self.plan.mass.state][1].of(layer)
