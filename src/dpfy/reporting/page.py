"""The style sheet of the HTML pages.

Tests: tests/reporting/test_screenshot.py.
"""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4;
  --card: #f6f8fa; --accent: #0b5cad; --bad: #b3131f; --bad-paper: #fdecec; --warn: #7a4d00; --warn-paper: #fff4d6;
  --good: #14683a; --pld: #0072b2; --rdp: #c24e00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161c; --ink: #e4e8ed; --soft: #9aa5b1; --line: #313a45; --card: #1a2028; --accent: #7cb8f2;
    --bad: #ff8d92; --bad-paper: #3a1518; --warn: #f0c36a; --warn-paper: #33270d; --good: #79d3a0;
    --pld: #56b4e9; --rdp: #f0883e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
header { border: 1px solid var(--line); border-left: 6px solid var(--accent); border-radius: 8px;
  background: var(--card); padding: 1.25rem 1.5rem; }
header.bad { border-color: var(--bad); }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .5rem 0; max-width: 48rem; }
.number { font-size: 2.1rem; font-weight: 650; line-height: 1.2; margin: .9rem 0; color: var(--accent); }
.void { font-size: 2.1rem; font-weight: 750; line-height: 1.2; margin: 0 0 .5rem; color: var(--bad); }
.caution { background: var(--warn-paper); color: var(--warn); border-radius: 6px; padding: .5rem .75rem;
  font-weight: 600; }
.bad .caution { background: var(--bad-paper); color: var(--bad); }
.formal { color: var(--soft); font-size: .95rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(max(12rem, 30%), 1fr));
  gap: .75rem 1rem; margin: 1.1rem 0 0; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.meaning { color: var(--soft); font-weight: 400; font-size: .8rem; line-height: 1.35; margin: .15rem 0 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem 1.5rem;
  margin-top: 1.5rem; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { font-family: inherit !important; }
figcaption { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .9rem .45rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 600; font-size: .8rem; border-bottom-width: 2px; white-space: nowrap; }
tbody th { font-weight: 600; min-width: 7rem; max-width: 16rem; }
.status { min-width: 8rem; font-weight: 600; color: var(--soft); }
.holds { color: var(--good); }
.does-not-hold { color: var(--bad); }
.not-known, .allowed-for-not-proved { color: var(--warn); }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; }
@media print {
  :root { --paper: #ffffff; --ink: #000000; --soft: #444444; --line: #cccccc; --card: #ffffff; --accent: #0b5cad;
    --bad: #b3131f; --bad-paper: #ffffff; --warn: #7a4d00; --warn-paper: #ffffff; --good: #14683a;
    --pld: #0072b2; --rdp: #c24e00; }
  html { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  tr, figure, header { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  .figures { grid-template-columns: 1fr 1fr; }
  th, td { padding-top: .2rem; padding-bottom: .2rem; }
}
"""
