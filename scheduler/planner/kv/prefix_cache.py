"""Which KV blocks hold which tokens, so that what begins like something earlier computes only where they part.

A tree for each scope: a tenant, or the share group that tenants declare; one cache serves one model. A node is a full
block, and the path from the root to it the tokens from the first on: the chain. A child is found by the hash of its
token ids (Python's hash of bytes, keyed anew in each process) and these are compared whole, so what only hashes alike
is no hit. Nothing leads from one scope to another: nobody's work is faster for what another tenant has sent.

A node that no table holds is idle: its block is free to whoever asks, and keeps its KV until then. What follows an
idle node is idle too, since a sequence adds nodes only behind those that its own table holds; so leaves can go first,
and no node is ever without the chain before it. Which leaf goes is decided by GreedyDual: by what it costs to compute
its block again, above a clock that each eviction moves up to what it took, so the costly stay longer, and nothing
stays for ever. But while a tenant keeps more than its share of the pool idle, it is the one to give.
Source: Young, "The k-server dual and loose competitiveness for paging" (Algorithmica, 1994).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.planner.steps import require

Scope = tuple[str, str]
"""Who shares KV: what kind of name it is, and the name."""
MOST_AT_ONCE = 8
"""Blocks of one chain that an eviction takes: those that would be next."""
MOST_STALE = 64
"""Entries of nodes that are no idle leaves any more, from which on they are thrown out if they are the most."""


class Leaves:
    """Idle leaves, the first to give up first. What stopped being one is passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []

    def add(self, value: float, node: "Node", idle: int) -> None:
        """A leaf, and how many nodes are idle at all."""
        if len(self._heap) > MOST_STALE + 2 * idle:
            self._heap = [entry for entry in self._heap if entry[2].idle_since == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (value, node.idle_since, node))

    def pop(self) -> tuple[float, "Node"]:
        """The first, and what it was worth. There is one while any node is idle."""
        while True:
            value, since, node = heapq.heappop(self._heap)
            if node.idle_since == since:
                return value, node


@dataclass(slots=True, eq=False)
class Branch:
    """One scope's tree, from its root."""

    scope: Scope
    children: dict[bytes, "Node"] = field(default_factory=dict)
    """First blocks, by their tokens."""
    idle: int = 0
    leaves: Leaves = field(default_factory=Leaves)


@dataclass(slots=True, eq=False)
class Node:
    """A full block, and what follows it."""

    block: int
    tokens: bytes
    branch: Branch
    parent: "Node | Branch"
    end: int
    """Position behind its last token."""
    children: dict[bytes, "Node"] = field(default_factory=dict)
    idle_since: int = 0
    """Number of the spell in which nobody holds it; 0 while somebody does."""
    clock: float = 0.0
    """The cache's clock when that began."""


class PrefixCache:
    """Knows full blocks by their tokens, and which of them are idle. Raises ValueError for a share out of range."""

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        share: float = 1.0,
        prices_ms: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        """`share`: part of the blocks that a tenant may keep idle before it is the one to give. `prices_ms`: what it
        costs now to compute a token, and what more for each square of the tokens from the first on."""
        require("share", share, 0.0, 1.0)
        self.idle = 0
        self._most_idle = share * blocks
        self._block_size = block_size
        self._prices_ms = prices_ms
        self._branches: dict[Scope, Branch] = {}
        self._nodes: dict[int, Node] = {}
        """By block."""
        self._leaves = Leaves()
        self._beyond: dict[Scope, Branch] = {}
        """Who keeps more than a share idle: few, since shares add up."""
        self._clock = 0.0
        self._spells = 0

    @property
    def blocks(self) -> int:
        """Blocks that it knows, idle or held."""
        return len(self._nodes)

    def knows(self, block: int) -> bool:
        """Is this block in a tree? Then it is not to be written."""
        return block in self._nodes

    def idle_blocks(self) -> Iterator[tuple[int, Scope]]:
        """The blocks that nobody holds, and whose each is."""
        return ((block, node.branch.scope) for block, node in self._nodes.items() if node.idle_since)

    def find(self, scope: Scope, table: Sequence[int], first: int, chunks: Iterable[bytes]) -> list[int]:
        """The blocks that hold these chunks of tokens, as far as there are any, behind a table's first blocks, which
        are in the tree."""
        place, found = self._end(scope, table, first), list[int]()
        if place is None:
            return found
        for tokens in chunks:
            node = place.children.get(tokens)
            if node is None:
                break
            found.append(node.block)
            place = node
        return found

    def publish(self, scope: Scope, table: Sequence[int], first: int, chunks: Iterable[bytes]) -> tuple[int, list[int]]:
        """Add what a table holds behind its first blocks, which are in the tree. A node that somebody else's block
        stands for ends it; one that is idle takes the table's block instead of its own.

        Returns how many blocks of the table are in the tree then, and the blocks that have left it: they are free.
        """
        place, freed = self._end(scope, table, first), list[int]()
        if place is None and not first:
            place = self._branches[scope] = Branch(scope)
        if place is None:
            return first, freed
        for tokens in chunks:
            node = place.children.get(tokens) or self._add(scope, place, tokens, table[first])
            if node.block != table[first]:
                if not node.idle_since:
                    break
                freed.append(node.block)
                self._replace(node, table[first])
            first += 1
            place = node
        return first, freed

    def keeps(self, block: int) -> bool:
        """Nobody holds this block any more. True: it is idle from now on; False: it was never in a tree."""
        node = self._nodes.get(block)
        if node is None:
            return False
        self._spells += 1
        node.idle_since, node.clock = self._spells, self._clock
        self._count_idle(node.branch, 1)
        if not node.children:
            self._offer(node)
        return True

    def hold(self, block: int) -> None:
        """Somebody holds this idle block."""
        node = self._nodes[block]
        node.idle_since = 0
        self._count_idle(node.branch, -1)

    def evict(self) -> list[int]:
        """Forget the idle block that is worth least, or the least of who keeps most beyond a share, and those before
        it that would be next; the blocks."""
        branch = max(self._beyond.values(), key=lambda one: one.idle, default=None)
        value, node = (branch.leaves if branch else self._leaves).pop()
        self._clock = max(self._clock, value)
        freed, clock, branch, parent = list[int](), node.clock, node.branch, node.parent
        while True:
            node.idle_since = 0
            del self._nodes[node.block], parent.children[node.tokens]
            freed.append(node.block)
            if parent.children or isinstance(parent, Branch) or not parent.idle_since:
                break
            if parent.clock > clock or len(freed) == MOST_AT_ONCE:
                self._offer(parent)
                break
            node, parent = parent, parent.parent
        self._count_idle(branch, -len(freed))
        if not branch.children:
            del self._branches[branch.scope]
        return freed

    def forget(self, is_gone: Callable[[Scope], bool]) -> list[int]:
        """Forget all idle blocks of some scopes; the blocks. What is held stays until nobody holds it."""
        nodes = [node for node in self._nodes.values() if node.idle_since and is_gone(node.branch.scope)]
        for node in nodes:
            del self._nodes[node.block], node.parent.children[node.tokens]
            node.idle_since, node.tokens = 0, b""
            self._count_idle(node.branch, -1)
        for branch in {id(node.branch): node.branch for node in nodes}.values():
            if not branch.children:
                del self._branches[branch.scope]
        return [node.block for node in nodes]

    def fault(self, references: Sequence[int]) -> str:
        """What contradicts how many tables hold each block, or itself; empty where nothing does."""
        for block, node in self._nodes.items():
            parent = node.parent
            if node.block != block or parent.children.get(node.tokens) is not node:
                return f"block {block} is not where it was put"
            if node.branch is not (parent if isinstance(parent, Branch) else parent.branch):
                return f"block {block} continues another tenant's chain"
            if bool(node.idle_since) == bool(references[block]):
                return f"block {block}: {references[block]} tables, idle since {node.idle_since}"
            if isinstance(parent, Node) and parent.idle_since and not node.idle_since:
                return f"block {block} is held, and what precedes it is not"
        idle = Counter(node.branch.scope for node in self._nodes.values() if node.idle_since)
        if idle != Counter({scope: branch.idle for scope, branch in self._branches.items()}):
            return "idle blocks of a tenant miscounted"
        if idle.total() != self.idle or {*self._beyond} != {one for one in idle if idle[one] > self._most_idle}:
            return "idle blocks miscounted"
        return ""

    def _end(self, scope: Scope, table: Sequence[int], first: int) -> Node | Branch | None:
        """The last node of a table's first blocks; the root where they are none. Never another scope's."""
        branch = self._branches.get(scope)
        if not first:
            return branch
        node = self._nodes.get(table[first - 1])
        return node if node and node.branch is branch else None

    def _add(self, scope: Scope, parent: Node | Branch, tokens: bytes, block: int) -> Node:
        start = parent.end if isinstance(parent, Node) else 0
        node = Node(block, tokens, self._branches[scope], parent, start + self._block_size)
        parent.children[tokens] = self._nodes[block] = node
        return node

    def _replace(self, node: Node, block: int) -> None:
        self.hold(node.block)
        del self._nodes[node.block]
        node.block = block
        self._nodes[block] = node

    def _offer(self, leaf: Node) -> None:
        token_ms, pair_ms = self._prices_ms()
        size = self._block_size
        value = leaf.clock + size * (token_ms + pair_ms * (2 * leaf.end - size))
        self._leaves.add(value, leaf, self.idle)
        leaf.branch.leaves.add(value, leaf, leaf.branch.idle)

    def _count_idle(self, branch: Branch, change: int) -> None:
        self.idle += change
        branch.idle += change
        if branch.idle > self._most_idle:
            self._beyond[branch.scope] = branch
        else:
            self._beyond.pop(branch.scope, None)
