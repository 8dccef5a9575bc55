"""Rows made ready before their tokens are known: what is packed of them is what would be packed anyway."""

import dataclasses

import pytest
import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Packed
from fairlane.worker.model.packing import Packer, pack
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import lease
from tests.support.worker.prompts import PROMPTS
from tests.support.worker.stepped import Client

ROWS = [
    Row(SeqId("a", 0), (7,), 5, (3, 1), True, 2),
    Row(SeqId("b", 0), (9,), 8, (2, 0, 4), True, 5),
    Row(SeqId("c", 0), (4,), 1, (5,), True, 1),
]
PACKED_ORDER = [ROWS[2], ROWS[0], ROWS[1]]


@pytest.fixture
def cache(tiny: TransformersModel) -> KVCache:
    return KVCache(tiny.shape, blocks=8, host_slots=0, block_size=4)


def same(one: Packed, other: Packed) -> bool:
    pairs = [(one.token_ids, other.token_ids), (one.positions, other.positions), (one.logit_rows, other.logit_rows)]
    pairs += zip(one.metadata.tensors, other.metadata.tensors, strict=True)
    return one.metadata.numbers == other.metadata.numbers and all(torch.equal(*pair) for pair in pairs)


def unknown(rows: list[Row]) -> list[Row]:
    return [row._replace(token_ids=(0,)) for row in rows]


@pytest.mark.parametrize("backend", ["sdpa", "triton"])
def test_what_was_made_ready_gets_its_tokens(cache: KVCache, backend: str) -> None:
    pytest.importorskip("triton") if backend == "triton" else None
    packer = Packer(cache, backend)
    packer.pack_ahead(unknown(ROWS))

    assert same(packer.pack(PACKED_ORDER), pack(PACKED_ORDER, cache, backend))


@pytest.mark.parametrize(
    "rows",
    [
        PACKED_ORDER[:2],
        [PACKED_ORDER[0]._replace(first_position=2), *PACKED_ORDER[1:]],
        [PACKED_ORDER[0]._replace(block_table=(6,)), *PACKED_ORDER[1:]],
        [*PACKED_ORDER[:2], PACKED_ORDER[2]._replace(token_ids=(9, 1), block_table=(2, 0, 4))],
        [*PACKED_ORDER[:2], PACKED_ORDER[2]._replace(samples=False)],
        [PACKED_ORDER[0]._replace(seq=SeqId("d", 0)), *PACKED_ORDER[1:]],
    ],
    ids=["fewer", "elsewhere", "another table", "more tokens", "no sample", "another sequence"],
)
def test_other_rows_are_packed_as_they_are(cache: KVCache, rows: list[Row]) -> None:
    packer = Packer(cache, "sdpa")
    packer.pack_ahead(unknown(ROWS))

    assert same(packer.pack(rows), pack(rows, cache, "sdpa"))


def test_what_was_made_ready_serves_once(cache: KVCache) -> None:
    packer = Packer(cache, "sdpa")
    packer.pack_ahead(unknown(ROWS))
    packer.pack(PACKED_ORDER[:1])

    found = packer.pack(PACKED_ORDER)

    assert same(found, pack(PACKED_ORDER, cache, "sdpa"))


def test_an_engine_that_looks_ahead_says_the_same(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []
    replace = dataclasses.replace

    def counted(packed: Packed, **changes: torch.Tensor) -> Packed:
        filled.append(len(packed.token_ids))
        return replace(packed, **changes)

    monkeypatch.setattr("fairlane.worker.model.packing.replace", counted)
    plain, ahead = Client(tiny), Client(tiny, looks_ahead=True)
    for client in (plain, ahead):
        for index, prompt in enumerate(PROMPTS):
            client.add(lease(str(index), prompt, max_tokens=10 + index))
        client.run()

    assert plain.tokens == ahead.tokens
    assert len(filled) > 5
