"""The operations on what tenants store: conversations, files, batches, and Message Batches."""

from collections.abc import Iterator

from fairlane.gateway.api import conversations
from fairlane.gateway.api.responses import ItemsQuery
from fairlane.gateway.control.admin.operation import Documented
from fairlane.gateway.control.openapi.documented import BATCH, BYTES, CHANGES, UPLOAD, documented
from fairlane.gateway.dialects.anthropic import batches as message_batches
from fairlane.gateway.dialects.openai import batches
from fairlane.gateway.dialects.openai.batches import UploadForm
from fairlane.gateway.dialects.openai.response_items import GivenItem
from fairlane.gateway.errors import ANTHROPIC_PATH


def stored_calls() -> Iterator[Documented]:
    """Yield the operations."""
    yield from _conversations()
    yield from _files_and_batches()
    yield from _message_batches()


def _message_batches() -> Iterator[Documented]:
    path, one = f"{ANTHROPIC_PATH}/batches", f"{ANTHROPIC_PATH}/batches/{{message_batch}}"
    batch = message_batches.MessageBatchObject
    yield documented(
        f"POST {path}",
        "create_message_batch",
        "Create a Message Batch: answer every request within 24 hours, on the throughput lane",
        batch,
        *BATCH,
        body=message_batches.MessageBatchBody,
    )
    yield documented(
        f"GET {path}",
        "list_message_batches",
        "List the tenant's Message Batches, newest first",
        message_batches.MessageBatchList,
        query=message_batches.MessageBatchesQuery,
    )
    yield documented(f"GET {one}", "get_message_batch", "Return a Message Batch and its progress", batch)
    yield documented(f"POST {one}/cancel", "cancel_message_batch", "Cancel a Message Batch", batch)
    summary = "Delete an ended Message Batch with its requests and results"
    yield documented(
        f"DELETE {one}", "delete_message_batch", summary, message_batches.DeletedMessageBatch, "unavailable"
    )
    summary = "Return the results of an ended Message Batch as JSON lines"
    yield documented(f"GET {one}/results", "get_message_batch_results", summary, {BYTES: str}, "unavailable")


def _conversations() -> Iterator[Documented]:
    one, item_list = conversations.ConversationObject, conversations.ConversationItemList
    items, item = conversations.ITEMS_PATH, conversations.ITEM_PATH
    yield documented(
        f"POST {conversations.PATH}",
        "create_conversation",
        "Store a conversation, to which responses can be added",
        one,
        "request_exceeds_limit",
        body=conversations.ConversationBody,
    )
    yield documented(f"GET {conversations.ONE_PATH}", "get_conversation", "Return a stored conversation", one)
    yield documented(
        f"POST {conversations.ONE_PATH}",
        "change_conversation",
        "Replace a conversation's metadata",
        one,
        *CHANGES,
        body=conversations.ConversationChange,
    )
    deleted = conversations.DeletedConversation
    yield documented(
        f"DELETE {conversations.ONE_PATH}", "delete_conversation", "Delete a conversation with its items", deleted
    )
    yield documented(
        f"POST {items}",
        "create_conversation_items",
        "Add items to a conversation",
        item_list,
        *CHANGES,
        body=conversations.ConversationItems,
    )
    summary = "List the items of a conversation"
    yield documented(f"GET {items}", "list_conversation_items", summary, item_list, query=ItemsQuery)
    yield documented(f"GET {item}", "get_conversation_item", "Return an item of a conversation", GivenItem)
    summary = "Delete an item of a conversation, and return the conversation"
    yield documented(f"DELETE {item}", "delete_conversation_item", summary, one, *CHANGES)


def _files_and_batches() -> Iterator[Documented]:
    yield documented(
        "POST /v1/files",
        "upload_file",
        "Upload a file of requests for a batch",
        batches.FileObject,
        *UPLOAD,
        body=UploadForm,
    )
    yield documented(
        "GET /v1/files", "list_files", "List the tenant's files", batches.FileList, query=batches.FilesQuery
    )
    yield documented("GET /v1/files/{file}", "get_file", "Return a file's metadata", batches.FileObject)
    yield documented(
        "DELETE /v1/files/{file}",
        "delete_file",
        "Delete a file, unless an open batch reads it",
        batches.DeletedObject,
        "unavailable",
    )
    yield documented(
        "GET /v1/files/{file}/content", "get_file_content", "Return a file's contents", {BYTES: str}, "unavailable"
    )
    yield documented(
        "POST /v1/batches",
        "create_batch",
        "Create a batch: answer every line of a file within a window, on the throughput lane",
        batches.BatchObject,
        *BATCH,
        body=batches.BatchBody,
    )
    yield documented(
        "GET /v1/batches",
        "list_batches",
        "List the tenant's batches, newest first",
        batches.BatchList,
        query=batches.BatchesQuery,
    )
    yield documented("GET /v1/batches/{batch}", "get_batch", "Return a batch and its progress", batches.BatchObject)
    yield documented(
        "POST /v1/batches/{batch}/cancel",
        "cancel_batch",
        "Cancel a batch; its output file keeps the lines answered so far",
        batches.BatchObject,
    )
