// The data of the page: JSON, compressed, as text.

async function load() {
  const text = document.getElementById("data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  data.sourceLines = data.sources.flatMap((part) =>
    part.lines.map((line, i) => ({ file: part.file, line: part.first + i, text: line })));
  let before = null;
  for (const stage of data.stages) {
    if (stage.same) stage.as = before;
    else if (stage.kind === "ir") before = stage;
    stage.listing = stage.as ?? stage;
  }
  for (const stage of data.stages) {
    if (stage.as) continue;
    stage.counts = new Int32Array(data.sourceLines.length);
    for (const source of stage.source) if (source >= 0) stage.counts[source] += 1;
  }
  return data;
}
