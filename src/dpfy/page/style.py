"""What the style sheet of the page adds to that of reports.

Tests: tests/browser/test_looks.py.
"""

from dpfy.reporting.page import STYLE

SHEET = (
    STYLE
    + """
:root { --c0: var(--pld); --c1: var(--rdp); --c2: #007a58; --c3: #8a4fa3; --c4: #7a5c00; --c5: #5f6b77; }
@media (prefers-color-scheme: dark) { :root { --c2: #3fc69a; --c3: #d19be6; --c4: #e0b94a; --c5: #a9b4c0; } }
body > header { border: 0; border-bottom: 1px solid var(--line); border-radius: 0; padding: 0; }
.bar { max-width: 72rem; margin: 0 auto; padding: .7rem 1.25rem; display: flex; flex-wrap: wrap; gap: .4rem 1.5rem;
  align-items: baseline; }
.brand { font-weight: 700; color: var(--ink); text-decoration: none; letter-spacing: .01em; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; list-style: none; margin: 0; padding: 0; }
nav a { color: var(--soft); text-decoration: none; padding: .2rem 0; border-bottom: 2px solid transparent; }
nav a:hover { color: var(--ink); }
nav a[aria-current] { color: var(--ink); font-weight: 600; border-bottom-color: var(--accent); }
#connection { margin: 0 0 0 auto; color: var(--soft); font-size: .8rem; }
#connection.lost { color: var(--warn); font-weight: 600; }
main { max-width: 72rem; padding-top: 1.5rem; }
[data-live=report] header h2 { margin-top: 0; }
main > h1 { font-size: 1.5rem; }
main a { color: var(--accent); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .4rem .8rem; z-index: 1; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.lead { color: var(--soft); }
.cards tbody th { min-width: 9.5rem; }
.number-cell { font-variant-numeric: tabular-nums; white-space: nowrap; }
.under { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; white-space: normal; max-width: 24rem;
  overflow-wrap: anywhere; }
.state { display: inline-block; font-weight: 600; white-space: nowrap; }
.state::before { content: ""; display: inline-block; width: .6em; height: .6em; border-radius: 50%; margin-right: .45em;
  background: var(--soft); }
.state.running { color: var(--accent); } .state.running::before { background: var(--accent); }
.state.complete { color: var(--good); } .state.complete::before { background: var(--good); }
.state.refused, .void-cell { color: var(--bad); } .state.refused::before { background: var(--bad); border-radius: 0; }
.state.not-running, .state.ended-early { color: var(--warn); }
.state.not-running::before, .state.ended-early::before { background: none; border: 2px solid var(--warn); }
.void-cell { font-weight: 700; }
progress { display: block; width: 100%; min-width: 6rem; height: .45rem; margin-top: .35rem; border: 0; border-radius: 3px;
  background: var(--line); accent-color: var(--accent); }
progress::-webkit-progress-bar { background: var(--line); border-radius: 3px; }
progress::-webkit-progress-value { background: var(--accent); border-radius: 3px; }
progress::-moz-progress-bar { background: var(--accent); border-radius: 3px; }
.refusal { background: var(--bad-paper); color: var(--bad); border-radius: 6px; padding: .6rem .8rem; overflow-wrap: anywhere;
  max-width: none; }
.tiles.plain { border: 1px solid var(--line); border-radius: 8px; background: var(--card); padding: 1rem 1.25rem; }
.tiles dd { font-variant-numeric: tabular-nums; }
.budget-bar { display: flex; height: .9rem; border-radius: 4px; overflow: hidden; background: var(--line); margin: .6rem 0 .2rem;
  border: 1px solid var(--line); }
.budget-bar svg { width: 100%; height: 100%; display: block; }
.key-spent { fill: var(--accent); } .key-reserved { fill: var(--rdp); } .key-free { fill: var(--line); }
.dataset { border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem; margin: 1rem 0; }
.dataset h2 { margin: 0; overflow-wrap: anywhere; } .dataset h3 { font-size: .95rem; margin: 1rem 0 .2rem; }
figure.empty { border: 1px dashed var(--line); border-radius: 8px; padding: 1rem; color: var(--soft); }
svg.chart text { font-size: 12px; fill: var(--soft); font-family: inherit; }
svg.chart .grid { stroke: var(--line); stroke-width: 1; }
svg.chart polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg.chart .law { stroke-dasharray: 6 4; stroke-width: 1.5; }
svg.chart .c0 { stroke: var(--c0); } svg.chart .c1 { stroke: var(--c1); stroke-dasharray: 8 3; } svg.chart .c2 { stroke: var(--c2); stroke-dasharray: 2 3; }
svg.chart .c3 { stroke: var(--c3); stroke-dasharray: 8 3 2 3; } svg.chart .c4 { stroke: var(--c4); } svg.chart .c5 { stroke: var(--c5); stroke-dasharray: 4 4; }
svg.chart .here { fill: var(--accent); stroke: var(--paper); stroke-width: 2; }
.legend { list-style: none; margin: .2rem 0 .3rem; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; }
svg.chart.key { width: 1.6rem; height: .55rem; display: inline-block; vertical-align: middle; }
button, .button { font: inherit; font-weight: 600; color: var(--paper); background: var(--accent); border: 0; border-radius: 6px;
  padding: .45rem 1rem; cursor: pointer; text-decoration: none; display: inline-block; }
main a.button { color: var(--paper); }
.actions { margin: 1rem 0; display: flex; gap: 1rem; flex-wrap: wrap; align-items: center; }
input[type=checkbox] { width: 1.1rem; height: 1.1rem; accent-color: var(--accent); margin: .15rem 0; }
.planner { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); gap: .9rem 1.5rem; margin: 1rem 0; }
.planner label { display: block; font-size: .9rem; color: var(--soft); }
.planner input[type=range] { width: 100%; accent-color: var(--accent); display: block; margin: .3rem 0 0; }
.planner input[type=number] { font: inherit; width: 100%; color: var(--ink); background: var(--paper); border: 1px solid var(--soft);
  border-radius: 5px; padding: .3rem .5rem; font-variant-numeric: tabular-nums; }
pre.command { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.visually-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 40rem) {
  .cards thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .cards, .cards tbody, .cards tr, .cards th, .cards td { display: block; }
  .cards tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; border: 1px solid var(--line); border-radius: 8px;
    padding: .6rem .9rem; margin: .7rem 0; }
  .cards td, .cards tbody th { border: 0; padding: .2rem 0; max-width: none; white-space: normal; overflow-wrap: anywhere; }
  .cards tbody th { min-width: 0; grid-column: 1 / -1; }
  .cards td:empty { display: none; }
  .cards td[data-label]::before { content: attr(data-label); display: block; color: var(--soft); font-size: .75rem; font-weight: 400; }
  #connection { margin-left: 0; }
}
@media print {
  :root { --c2: #007a58; --c3: #8a4fa3; --c4: #7a5c00; --c5: #5f6b77; }
  body > header, .skip, .actions, .planner, .pick { display: none; }
}
"""
)
