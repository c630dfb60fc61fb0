"use strict";
// Ask for the page again when the server says that it changed, and replace the parts that differ.

const topic = document.body.dataset.topic;
const parts = (page) => new Map([...page.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part]));
const shown = new Map([...parts(document)].map(([name, part]) => [name, part.innerHTML]));
const status = document.getElementById("connection");
let busy = false, again = false;

async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const before = parts(document), after = parts(fresh);
    if (before.size !== after.size || [...before.keys()].some((name) => !after.has(name))) return location.reload();
    for (const [name, part] of after) if (shown.get(name) !== part.innerHTML) replace(before.get(name), name, part.innerHTML);
  } catch { /* the stream says that the connection is lost */ } finally {
    busy = false;
    if (again) { again = false; setTimeout(refresh, 500); }
  }
}

function replace(part, name, html) {
  shown.set(name, html);
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const picked = [...part.querySelectorAll("input:checked")].map((each) => each.id);
  part.innerHTML = html;
  for (const id of picked) { const each = document.getElementById(id); if (each) each.checked = true; }
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

function listen() {
  const stream = new EventSource(`/events?topic=${encodeURIComponent(topic)}&since=${encodeURIComponent(document.body.dataset.version)}`);
  stream.onopen = () => { status.textContent = "live"; status.className = ""; };
  stream.onerror = () => { status.textContent = "connection lost: this may be out of date"; status.className = "lost"; };
  stream.onmessage = refresh;
}

if (topic) listen();
