"""What LaneScheduler and the vLLM adapter use of vLLM, and the record of it for each supported version.

`python -m tests.worker.vllm.interface DIRECTORY` prints the record of the version whose `vllm` folder is in DIRECTORY:
the site-packages of an environment, or an unpacked wheel. It reads the source and runs none of it. Store it as
interfaces/MINOR.json. What a record lacks is missing in that version.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OURS = [Path(__file__).parents[3] / "worker" / "vllm" / name for name in ("guarded_scheduler.py", "lane_scheduler.py")]
RECORDS = Path(__file__).with_name("interfaces")
SCHEDULER, REQUEST = "v1/core/sched/scheduler.py:Scheduler", "v1/request.py:Request"
MANAGER, BLOCKS = (f"v1/core/kv_cache_manager.py:{name}" for name in ("KVCacheManager", "KVCacheBlocks"))
POOL, LORA = "v1/core/block_pool.py:BlockPool", "lora/request.py:LoRARequest"
CONFIG, SAMPLING = "config/scheduler.py:SchedulerConfig", "sampling_params.py:SamplingParams"
QUEUE = "v1/core/sched/request_queue.py:RequestQueue"
# Classes of expressions in our source.
CLASSES = {
    "self": SCHEDULER,
    "super()": SCHEDULER,
    "request": REQUEST,
    "one": REQUEST,
    "output": "v1/core/sched/output.py:SchedulerOutput",
    "request.sampling_params": SAMPLING,
    "request.structured_output_request": "v1/structured_output/request.py:StructuredOutputRequest",
    "request.lora_request": LORA,
    "one.lora_request": LORA,
    "manager": MANAGER,
    "self.kv_cache_manager": MANAGER,
    "manager.get_computed_blocks(request)[0]": BLOCKS,
    "self.kv_cache_manager.get_blocks(request.request_id)": BLOCKS,
    "manager.block_pool": POOL,
    "self.kv_cache_manager.block_pool": POOL,
    "block": "v1/core/kv_cache_utils.py:KVCacheBlock",
    "self.structured_output_manager": "v1/structured_output/__init__.py:StructuredOutputManager",
    "self.lora_config": "config/lora.py:LoRAConfig",
    "self.scheduler_config": CONFIG,
    "vllm_config.scheduler_config": CONFIG,
    "vllm_config": "config/vllm.py:VllmConfig",
    "PauseState": "v1/core/sched/interface.py:PauseState",
    "RequestStatus": "v1/request.py:RequestStatus",
    "SchedulingPolicy": "v1/core/sched/request_queue.py:SchedulingPolicy",
}
# `one` is also a lane, or a demand.
NOT_VLLM = {"rank"}
TOKENS, POOLING = "entrypoints/scale_out/token_in_token_out/protocol.py", "entrypoints/pooling"
# Fields that the adapter sends and reads.
FIELDS = {
    f"{TOKENS}:GenerateRequest": "cache_salt content_parts model priority request_id return_token_ids sampling_params"
    " stream stream_options token_ids",
    SAMPLING: "allowed_token_ids detokenize extra_args frequency_penalty ignore_eos logit_bias logprobs max_tokens"
    " min_p min_tokens presence_penalty prompt_logprobs repetition_penalty seed stop_token_ids structured_outputs"
    " temperature top_k top_p",
    "sampling_params.py:StructuredOutputsParams": "grammar",
    "entrypoints/generate/base/protocol.py:StreamOptions": "continuous_usage_stats include_usage",
    f"{TOKENS}:GenerateTokensStreamResponse": "choices mm_placeholders prompt_token_ids usage",
    f"{TOKENS}:GenerateTokensStreamChoice": "finish_reason logprobs token_ids",
    f"{TOKENS}:GenerateTokensResponse": "mm_placeholders prompt_logprobs prompt_token_ids",
    f"{TOKENS}:GenerateLogProbsContent": "logprob token_id top_logprobs",
    "entrypoints/openai/chat_completion/protocol.py:ChatCompletionRequest": "messages mm_payload model",
    f"{TOKENS}:MultiModalFeatures": "mm_placeholders",
    f"{TOKENS}:PlaceholderRangeInfo": "length offset",
    f"{POOLING}/embed/protocol.py:EmbeddingCompletionRequest": "cache_salt encoding_format input model priority",
    f"{POOLING}/scoring/protocol.py:RerankRequest": "cache_salt documents model priority query",
    f"{POOLING}/scoring/protocol.py:RerankResult": "index relevance_score",
}
# Paths, metrics, prefixes and options that the adapter relies on, by folder.
TEXTS = {
    "entrypoints": "/health /inference/v1/abort_requests /inference/v1/generate /tokenize /v1/chat/completions/render"
    " /v1/embeddings /v1/models /v1/rerank /version enable_scale_out generate-tokens-",
    "config": "scheduler_cls",
    "v1/metrics": "vllm:cache_config_info",
}
# Names of a class, module or folder; a method with its parameters, as `name(self, one, two=...)`.
Record = dict[str, list[str]]


@cache
def nodes() -> list[ast.AST]:
    return [node for path in OURS for node in ast.walk(ast.parse(path.read_text()))]


def attributes() -> Iterator[tuple[str, str]]:
    """Expressions and their attributes, in our source."""
    return ((ast.unparse(node.value), node.attr) for node in nodes() if isinstance(node, ast.Attribute))


def overridden() -> set[str]:
    return {name for owner, name in attributes() if owner == "super()"} - {"__new__"}


def used() -> dict[str, set[str]]:
    """Return what our source names, by class or module of vLLM."""
    names: dict[str, set[str]] = defaultdict(set)
    for owner, name in attributes():
        if owner in CLASSES and name not in NOT_VLLM:
            names[CLASSES[owner]].add(name)
    for node in nodes():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
            names[str(node.module)].update(one.name for one in node.names)
    names[SCHEDULER] -= {name for path in OURS for name in members(ast.parse(path.read_text()))} - overridden()
    for owner, fields in FIELDS.items():
        names[owner].update(fields.split())
    return names


def recorded(minor: str) -> Record:
    found: Record = json.loads((RECORDS / f"{minor}.json").read_text())
    return found


def members(tree: ast.AST) -> dict[str, str]:
    """Return the names that a class defines, each as in a record."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            is_method = not decorators & {"property", "cached_property", "setter"}
            found[node.name] = f"{node.name}({_parameters(node.args)})" if is_method else node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            for target in [node.target] if isinstance(node, ast.AnnAssign) else node.targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    owner, _, name = ast.unparse(one).rpartition(".")
                    if owner in ("", "self"):
                        found.setdefault(name, name)
    return found


def _parameters(found: ast.arguments) -> str:
    """Return them without annotations, and every default as `...`: what a call depends on."""
    for one in (*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg):
        if one is not None:
            one.annotation = None
    found.defaults = [ast.Constant(...) for _ in found.defaults]
    found.kw_defaults = [default and ast.Constant(...) for default in found.kw_defaults]
    return ast.unparse(found)


def record(directory: Path) -> Record:
    package = directory / "vllm"
    made: Record = {}
    for owner, names in sorted(used().items()):
        there = _exported(directory, owner) if owner.startswith("vllm.") else _inherited(package, owner)
        made[owner] = [there[name] for name in sorted(names) if name in there]
    abstract = _inherited(package, QUEUE)
    made[QUEUE] = [form for name, form in sorted(abstract.items()) if form != name]
    for folder, texts in TEXTS.items():
        source = "".join(path.read_text() for path in (package / folder).rglob("*.py"))
        made[folder] = [text for text in texts.split() if (f'"{text}"' if text.startswith("/") else text) in source]
    return made


def _exported(directory: Path, module: str) -> dict[str, str]:
    base = directory.joinpath(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    names = {word for node in ast.parse(path.read_text()).body for word in _bound(node)}
    return {name: name for name in names}


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    return [one.asname or one.name for one in node.names] if isinstance(node, ast.ImportFrom) else []


def _inherited(package: Path, owner: str) -> dict[str, str]:
    """Return the members of a class of vLLM, with those of its bases."""
    path, _, name = owner.partition(":")
    tree = ast.parse((package / path).read_text())
    [node] = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    found: dict[str, str] = {}
    for base in map(ast.unparse, node.bases):
        for other in tree.body:
            if isinstance(other, ast.ClassDef) and other.name == base:
                found |= _inherited(package, f"{path}:{base}")
            elif isinstance(other, ast.ImportFrom) and base in _bound(other):
                folder = Path(path).parents[other.level - 1].parts if other.level else ()
                parts = (other.module or "").removeprefix("vllm.").split(".")
                if other.level or (other.module or "").startswith("vllm."):
                    found |= _inherited(package, f"{'/'.join([*folder, *parts])}.py:{base}")
    return found | members(node)


def main() -> None:
    lines = [f"{json.dumps(owner)}: {json.dumps(names)}" for owner, names in record(Path(sys.argv[1])).items()]
    print("{\n" + ",\n".join(lines) + "\n}")  # noqa: T201


if __name__ == "__main__":
    main()
