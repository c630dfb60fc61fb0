"use strict";
// Sliders write numbers into a form; the accountant answers it. Nothing is accounted here.

const form = document.getElementById("planner"), answer = document.getElementById("answer"), contours = document.getElementById("contours");
let asked = 0, timer;

async function part(name, query) {
  const found = await fetch(`/plan/${name}?${query}`);
  if (!found.ok) throw new Error(String(found.status));
  return found.text();
}

async function ask() {
  const turn = ++asked, query = new URLSearchParams(new FormData(form)).toString();
  answer.setAttribute("aria-busy", "true");
  try {
    for (const [place, name] of [[answer, "answer"], [contours, "contours"]]) {
      const html = await part(name, query);
      if (turn !== asked) return;
      place.innerHTML = html;
      if (place === answer) history.replaceState(null, "", `/plan?${query}`);
    }
  } catch {
    if (turn === asked) answer.textContent = "The page is no longer connected. Start dpfy page again.";
  } finally {
    if (turn === asked) answer.removeAttribute("aria-busy");
  }
}

function soon() { clearTimeout(timer); timer = setTimeout(ask, 150); }

for (const slider of form.querySelectorAll("input[type=range]")) {
  const number = document.getElementById(slider.dataset.for), stops = slider.dataset.stops.split(" ");
  const tell = () => slider.setAttribute("aria-valuetext", number.value);
  slider.hidden = false;
  slider.addEventListener("input", () => { number.value = stops[slider.value]; tell(); soon(); });
  number.addEventListener("input", () => {
    const distance = (stop) => Math.abs(Math.log(stop / number.value));
    if (number.value > 0) slider.value = stops.reduce((best, stop, place) => distance(stop) < distance(stops[best]) ? place : best, 0);
    tell(); soon();
  });
  tell();
}
form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
ask();
