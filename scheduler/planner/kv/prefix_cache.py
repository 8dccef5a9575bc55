"""Prefix cache: a tree of full blocks per scope, so that a request computes only the part after a common prefix.

Scopes are never connected, and token ids are compared, so a hash collision is not a hit. GreedyDual evicts idle leaves
by cost: Young, "The k-server dual and loose competitiveness for paging" (Algorithmica, 1994)."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.planner.steps import require

# Kind of name, and the name, that identify who shares KV.
Scope = tuple[str, str]
# Maximum blocks of one chain per eviction: those that would be next.
MAX_PER_EVICTION = 8
# Number of stale heap entries, of nodes that are no longer idle leaves, that is always tolerated.
MAX_STALE = 64


class Leaves:
    """A heap of idle leaves, the first to evict on top. Stale entries are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []

    def add(self, value: float, node: "Node", idle: int) -> None:
        if len(self._heap) > MAX_STALE + 2 * idle:
            self._heap = [entry for entry in self._heap if entry[2].idle_since == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (value, node.idle_since, node))

    def pop(self) -> tuple[float, "Node"]:
        while True:
            value, since, node = heapq.heappop(self._heap)
            if node.idle_since == since:
                return value, node


@dataclass(slots=True, eq=False)
class Branch:
    """The tree of one scope."""

    scope: Scope
    children: dict[bytes, "Node"] = field(default_factory=dict)
    idle: int = 0
    leaves: Leaves = field(default_factory=Leaves)


@dataclass(slots=True, eq=False)
class Node:
    """A full block, and the nodes after it."""

    block: int
    tokens: bytes
    branch: Branch
    parent: "Node | Branch"
    end: int
    children: dict[bytes, "Node"] = field(default_factory=dict)
    idle_since: int = 0
    clock: float = 0.0


class PrefixCache:
    """Full blocks by their tokens, and which of them are idle. Raises ValueError for a share out of range."""

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        share: float = 1.0,
        prices_ms: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        """`share`: fraction of the blocks that a tenant may keep idle. `prices_ms` returns the cost of computing a
        token, and the additional cost per square of the tokens."""
        require("share", share, 0.0, 1.0)
        self.idle = 0
        self._most_idle = share * blocks
        self._block_size = block_size
        self._prices_ms = prices_ms
        self._branches: dict[Scope, Branch] = {}
        self._nodes: dict[int, Node] = {}
        self._leaves = Leaves()
        # Scopes that keep more than a share idle: few, since shares add up.
        self._beyond: dict[Scope, Branch] = {}
        self._clock = 0.0
        self._spells = 0

    @property
    def blocks(self) -> int:
        return len(self._nodes)

    def knows(self, block: int) -> bool:
        return block in self._nodes

    def idle_blocks(self) -> Iterator[tuple[int, Scope]]:
        return ((block, node.branch.scope) for block, node in self._nodes.items() if node.idle_since)

    def find(self, scope: Scope, table: Sequence[int], first: int, chunks: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold these chunks of tokens, as far as known, after a table's first blocks, which must
        be in the tree."""
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
        """Add a table's blocks after its first ones, which must be in the tree. A node with a block held elsewhere ends
        this; an idle node takes the table's block.

        Return how many of the table's blocks are in the tree then, and the replaced blocks, which are free."""
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
        """Mark a block without holders as idle. Return False if it was never in a tree."""
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
        node = self._nodes[block]
        node.idle_since = 0
        self._count_idle(node.branch, -1)

    def evict(self) -> list[int]:
        """Evict the idle leaf of least value, of the scope that exceeds its share most if any does, and the nodes
        before it that would be next. Return their blocks."""
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
            if parent.clock > clock or len(freed) == MAX_PER_EVICTION:
                self._offer(parent)
                break
            node, parent = parent, parent.parent
        self._count_idle(branch, -len(freed))
        if not branch.children:
            del self._branches[branch.scope]
        return freed

    def forget(self, is_gone: Callable[[Scope], bool]) -> list[int]:
        """Remove and return all idle blocks of some scopes. Held ones stay until their last holder releases them."""
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
        for block, node in self._nodes.items():
            parent = node.parent
            if node.block != block or parent.children.get(node.tokens) is not node:
                return f"block {block} is not a child of its parent"
            if node.branch is not (parent if isinstance(parent, Branch) else parent.branch):
                return f"block {block} continues another tenant's chain"
            if bool(node.idle_since) == bool(references[block]):
                return f"block {block}: {references[block]} tables, idle since {node.idle_since}"
            if isinstance(parent, Node) and parent.idle_since and not node.idle_since:
                return f"block {block} is held, but its parent is not"
        idle = Counter(node.branch.scope for node in self._nodes.values() if node.idle_since)
        if idle != Counter({scope: branch.idle for scope, branch in self._branches.items()}):
            return "idle blocks of a tenant miscounted"
        if idle.total() != self.idle or {*self._beyond} != {one for one in idle if idle[one] > self._most_idle}:
            return "idle blocks miscounted"
        return ""

    def _end(self, scope: Scope, table: Sequence[int], first: int) -> Node | Branch | None:
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
