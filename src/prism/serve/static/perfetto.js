// Pass a trace to Perfetto's own page, in a new tab and only on request: no other data here leaves the cluster.
const ORIGIN = "https://ui.perfetto.dev";

export async function openInPerfetto(url, title, say) {
  const other = window.open(ORIGIN, "_blank");
  if (!other) throw new Error("the browser refused a new tab; allow pop-ups for this page, or download the trace");
  say("fetching the trace");
  const answer = await fetch(url);
  if (!answer.ok) { other.close(); throw new Error((await answer.json()).error?.message || "no trace"); }
  const buffer = await answer.arrayBuffer();
  say("waiting for Perfetto");
  await new Promise((resolve, reject) => {
    const ping = setInterval(() => other.postMessage("PING", ORIGIN), 100);
    const giveUp = setTimeout(() => { done(); reject(new Error("ui.perfetto.dev does not answer (no internet?); download the trace and open it there")); }, 30_000);
    const done = () => { clearInterval(ping); clearTimeout(giveUp); window.removeEventListener("message", onPong); };
    const onPong = (event) => { if (event.origin === ORIGIN && event.data === "PONG") { done(); resolve(); } };
    window.addEventListener("message", onPong);
  });
  other.postMessage({ perfetto: { buffer, title, fileName: `${title}.perfetto-trace` } }, ORIGIN, [buffer]);
  say("");
}
