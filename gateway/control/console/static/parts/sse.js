// A parser of server-sent events for `fetch`: data and comments, in order.

/** Yields each event as `{comment}` or `{data}`. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const text = line.trimEnd();
        if (text.startsWith(":")) yield { comment: text.slice(1).trim() };
        else if (text.startsWith("data:")) yield { data: text.slice(5).trim() };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
