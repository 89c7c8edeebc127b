"use strict";
// A page of a folder of pages is packed; what they share is here.
const why = document.getElementById("why");
why.hidden = true;

const showWhy = () => {
  why.hidden = false;
};

const openPage = async () => {
  const place = document.getElementById("page");
  const packed = Uint8Array.from(atob(place.textContent), (c) => c.charCodeAt(0));
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const page = new DOMParser().parseFromString(await new Response(content).text(), "text/html");
  document.title = page.title;
  document.documentElement.className = page.documentElement.className;
  document.head.append(Object.assign(document.createElement("style"), { textContent: ":root {\n  color-scheme: light dark;\n  --paper: #ffffff;\n  --raised: #f6f7f9;\n  --ink: #171c22;\n  --quiet: #56606b;\n  --rule: #dde1e6;\n  --grid: #e4e7eb;\n  --accent: #0060a0;\n  --warn-ink: #7a4b00;\n  --warn-paper: #fff5e0;\n  --bad-ink: #a3240f;\n  --bad-paper: #fdeeea;\n  --mono: ui-monospace, \"SF Mono\", \"Cascadia Mono\", Menlo, Consolas, \"DejaVu Sans Mono\", monospace;\n}\n@media (prefers-color-scheme: dark) {\n  :root:not([data-theme=\"light\"]) {\n    --paper: #12161b;\n    --raised: #1a2027;\n    --ink: #e8ebee;\n    --quiet: #a0a9b3;\n    --rule: #2f3741;\n    --grid: #2a323b;\n    --accent: #6db8ee;\n    --warn-ink: #f3c36b;\n    --warn-paper: #2c2413;\n    --bad-ink: #ff9d87;\n    --bad-paper: #341b16;\n  }\n}\n:root[data-theme=\"light\"] { color-scheme: light; }\n:root[data-theme=\"dark\"] {\n  color-scheme: dark;\n  --paper: #12161b;\n  --raised: #1a2027;\n  --ink: #e8ebee;\n  --quiet: #a0a9b3;\n  --rule: #2f3741;\n  --grid: #2a323b;\n  --accent: #6db8ee;\n  --warn-ink: #f3c36b;\n  --warn-paper: #2c2413;\n  --bad-ink: #ff9d87;\n  --bad-paper: #341b16;\n}\n\n*, *::before, *::after { box-sizing: border-box; }\nhtml { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }\nbody {\n  margin: 0 auto;\n  max-width: 76rem;\n  padding: 0 clamp(1rem, 4vw, 2.5rem) 5rem;\n  background: var(--paper);\n  color: var(--ink);\n  font: 1rem/1.55 system-ui, -apple-system, \"Segoe UI\", Roboto, \"Helvetica Neue\", sans-serif;\n  overflow-wrap: break-word;\n}\nh1, h2, h3, h4, p, ul, ol, dl, dd, figure { margin: 0; }\nul, ol { padding: 0; list-style: none; }\nh1 { font-size: clamp(1.6rem, 1.2rem + 2vw, 2.44rem); line-height: 1.15; letter-spacing: -0.02em; font-weight: 650; text-wrap: balance; overflow-wrap: anywhere; }\nh2 { font-size: 1.375rem; line-height: 1.25; letter-spacing: -0.01em; font-weight: 650; margin-bottom: 1rem; }\nh3 { font-size: 1rem; font-weight: 650; }\nh4 { font-size: 0.9375rem; font-weight: 600; overflow-wrap: anywhere; }\n.quiet { color: var(--quiet); font-size: 0.875rem; font-weight: 400; overflow-wrap: anywhere; }\n.mono, code, pre { font-family: var(--mono); font-size: 0.8125rem; }\na { color: var(--accent); text-underline-offset: 0.18em; }\n:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }\nbutton {\n  font: inherit; font-size: 0.8125rem; line-height: 1.4; color: var(--ink); background: none;\n  border: 1px solid var(--rule); border-radius: 6px; padding: 0.25rem 0.7rem; cursor: pointer;\n}\nbutton:hover { background: var(--raised); }\n.whole { white-space: nowrap; }\n[hidden] { display: none !important; }\n\n.masthead { display: flex; justify-content: space-between; align-items: center; padding: 1rem 0; border-bottom: 1px solid var(--rule); }\n.wordmark { font-weight: 700; letter-spacing: -0.01em; }\n.runs { padding: 1rem 0; border-bottom: 1px solid var(--rule); }\n.runs li { padding: 0.15rem 0; }\n.exhibit { margin-top: 2.75rem; }\n.exhibit > * + * { margin-top: 0.6rem; }\n.asked { padding: 0.6rem 0.8rem; border-radius: 6px; background: var(--raised); font-size: 0.85rem; overflow-wrap: anywhere; }\n.asked::before { content: \"$ \"; color: var(--quiet); }\n.answers th[scope=\"row\"] { font-weight: 600; text-align: left; }\n.answers td:nth-child(2), .answers td:nth-child(3) { text-align: right; white-space: nowrap; }\n.comparison { padding-top: 2.5rem; }\n.comparison + .run { border-top: 3px solid var(--ink); margin-top: 4rem; }\n.run + .run { border-top: 3px solid var(--ink); margin-top: 5rem; }\n.identity { padding: 2.5rem 0 0; display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.6rem; }\n.notice { border-left: 3px solid var(--warn-ink); background: var(--warn-paper); color: var(--warn-ink); padding: 0.5rem 0.8rem; border-radius: 0 6px 6px 0; font-weight: 550; overflow-wrap: anywhere; }\n.run > section { margin-top: 3.25rem; }\n\n.suite + .suite { margin-top: 2.25rem; }\n.suite h3 .quiet { margin-left: 0.5rem; }\n.ranking { font-size: 1.125rem; margin-top: 0.35rem; }\n.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 1rem; }\n.card { border: 1px solid var(--rule); border-top: 3px solid var(--case); border-radius: 4px 4px 8px 8px; padding: 0.9rem 1.1rem 1.1rem; flex: 1 1 min(21rem, 100%); max-width: 36rem; min-width: 0; }\n.card.baseline { flex: 1 1 100%; max-width: none; display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 1.5rem; padding: 0.5rem 1.1rem 0.6rem; }\n.card.baseline .headline { margin: 0; gap: 0 0.6rem; justify-content: start; align-items: baseline; }\n.card.baseline .notes, .card.baseline .sentence { margin: 0; }\n.headline { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: end; gap: 0 0.5rem; margin-top: 0.1rem; }\n.headline .where { display: block; }\n.big { font-size: 2.25rem; line-height: 1.15; font-weight: 650; letter-spacing: -0.03em; font-variant-numeric: tabular-nums; }\n.card.failed .big, .card.inconclusive .big { font-size: 1.75rem; line-height: 1.8; letter-spacing: -0.015em; color: var(--quiet); }\n.card.single .big { font-size: 1.75rem; line-height: 1.8; letter-spacing: -0.015em; }\n.card.baseline .big { font-size: 1.1875rem; line-height: 1.5; letter-spacing: -0.01em; }\n.card.failed { border-top-style: dashed; }\n.where { color: var(--quiet); font-size: 0.875rem; }\n.share { text-align: right; }\n.card .share .big { font-size: 1.1875rem; line-height: 1.3; letter-spacing: -0.01em; color: inherit; }\n.bar { position: relative; height: 8px; background: var(--grid); border-radius: 4px; margin: 0.5rem 0 0.8rem; overflow: hidden; }\n.bar .fill { position: absolute; inset: 0 auto 0 0; background: var(--case); opacity: 0.85; }\n.bar .span { position: absolute; top: 0; bottom: 0; min-width: 2px; background: repeating-linear-gradient(90deg, var(--ink) 0 1px, transparent 1px 3px); opacity: 0.55; }\n.barkey { display: flex; align-items: center; gap: 0.6rem; margin-top: 0.8rem; }\n.barkey .bar { flex: none; display: inline-block; width: 2.5rem; margin: 0; }\n.barkey .span { display: block; inset: 0 20%; }\n.sentence { margin-top: 0.5rem; font-size: 0.9375rem; }\n.because { margin-top: 0.35rem; font-size: 0.9375rem; }\n.advice { font-weight: 600; }\n.notes { margin-top: 0.5rem; color: var(--quiet); font-size: 0.8125rem; line-height: 1.5; }\n.notes li { padding-left: 0.9rem; position: relative; overflow-wrap: anywhere; }\n.notes li + li { margin-top: 0.25rem; }\n.notes li::before { content: \"\u2013\"; position: absolute; left: 0; }\n.general { margin-top: 1rem; color: var(--quiet); max-width: 46rem; }\n\n.scroll { overflow-x: auto; }\n.scroll + .scroll { margin-top: 2rem; }\ntable { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }\n.results { min-width: 100%; }\ncaption { text-align: left; color: var(--quiet); padding-bottom: 0.5rem; }\nth, td { padding: 0.4rem 0.6rem; text-align: left; vertical-align: baseline; border-bottom: 1px solid var(--rule); white-space: nowrap; }\nth:first-child, td:first-child { padding-left: 0; }\nth:last-child, td:last-child { padding-right: 0; }\nthead th { font-size: 0.8125rem; font-weight: 600; color: var(--quiet); border-bottom-color: var(--quiet); vertical-align: bottom; }\n.results thead th { white-space: normal; }\ntbody th { font-weight: 500; white-space: normal; overflow-wrap: break-word; min-width: 7rem; max-width: 14rem; }\n.results tbody tr:not(.first) th, .listing tbody tr:not(.first) th, .listing tr.repeated td:nth-child(2) { color: transparent; user-select: none; }\ntr.failed td, tr.oom td, tr.skipped td { font-weight: 400 !important; }\n.number, .figures th:not(:first-child), .figures td:not(:first-child) { text-align: right; }\ntd small { display: block; color: var(--quiet); font-size: 0.75rem; line-height: 1.3; }\ntd.efficiency, td.speedup { font-weight: 650; }\ntd small { font-weight: 400; }\ntr.crowded td.efficiency, tr.crowded td.speedup { font-weight: 400; color: var(--quiet); }\ntr.failed td.step, tr.oom td.step { color: var(--bad-ink); font-weight: 650 !important; }\ntr.skipped td { color: var(--quiet); }\ntd.marks { white-space: normal; min-width: 8.5rem; }\n.mark { display: inline-block; font-size: 0.75rem; line-height: 1.5; color: var(--warn-ink); background: var(--warn-paper); border-radius: 4px; padding: 0 0.4rem; margin: 0 0.3rem 0.15rem 0; overflow-wrap: anywhere; white-space: normal; }\n\nfigure + figure { margin-top: 2.5rem; }\nfigcaption { font-size: 1.0625rem; max-width: 46rem; }\n.key { display: flex; flex-wrap: wrap; gap: 0.15rem 0.3rem; margin: 0.7rem 0 0 -0.5rem; }\n.key li { display: flex; align-items: center; min-width: 0; }\n.key .toggle { flex: none; max-width: 100%; }\n.key.explained { display: grid; gap: 0.1rem; margin-left: -0.5rem; }\n.key.explained li { display: grid; grid-template-columns: 11.5rem minmax(0, 1fr); align-items: center; }\nfigure .note { max-width: 46rem; margin-top: 0.7rem; }\n.toggle { display: inline-flex; align-items: center; gap: 0.45rem; border-color: transparent; padding: 0.15rem 0.5rem; text-align: left; overflow-wrap: anywhere; }\n.toggle[aria-pressed=\"false\"] { color: var(--quiet); text-decoration: line-through; }\n.toggle.offer[aria-pressed=\"false\"] { text-decoration: none; }\n.toggle[aria-pressed=\"false\"] .swatch { opacity: 0.3; }\n.swatch { flex: none; }\n.views { display: flex; flex-wrap: wrap; align-items: center; gap: 0.6rem; margin-top: 0.7rem; }\n.views select { font: inherit; color: var(--ink); background: var(--paper); border: 1px solid var(--rule); border-radius: 6px; padding: 0.25rem 0.5rem; max-width: 100%; }\n.tables figure { margin-top: 1.5rem; }\n.tables .suite > figure:first-child, .tables h3 + figure { margin-top: 0.6rem; }\n.tables figure h4 { margin: 2rem 0 0.3rem; }\n.chart { width: 100%; min-width: 0; margin-top: 0.5rem; }\n.chart .xtick text, .chart .ytick text, .chart .g-xtitle text, .chart .g-ytitle text { fill: var(--quiet) !important; }\n.chart .annotation text { fill: var(--ink) !important; }\n.chart .annotation .bg { fill: var(--paper) !important; }\n.chart .textpoint text, .chart .bartext { fill: var(--ink) !important; }\n.chart .cbaxis text { fill: var(--quiet) !important; }\n.chart .gridlayer path { stroke: var(--grid) !important; }\n.chart .modebar-btn path { fill: var(--quiet) !important; }\n.tables .conclusion { font-size: 1.0625rem; max-width: 46rem; }\n.tables h4 { margin-top: 1.75rem; font-weight: 650; }\n.tables .quiet { max-width: 46rem; }\n.tables .scroll { margin-top: 0.4rem; }\n.tables details { margin-top: 1rem; }\ndetails { margin-top: 0.5rem; font-size: 0.875rem; }\nsummary { cursor: pointer; color: var(--quiet); padding: 0.25rem 0; width: fit-content; }\ndetails .scroll { margin-top: 0.5rem; max-height: 30rem; overflow-y: auto; }\n\ndl.missing > div, dl.marks > div { display: grid; grid-template-columns: minmax(9rem, 16rem) 1fr; gap: 0.2rem 1.5rem; padding: 0.6rem 0; border-top: 1px solid var(--rule); }\ndt { font-weight: 550; overflow-wrap: anywhere; min-width: 0; }\ndd { min-width: 0; overflow-wrap: anywhere; }\n.status { display: inline-block; font-size: 0.75rem; font-weight: 650; border-radius: 4px; padding: 0 0.45rem; margin-right: 0.35rem; background: var(--raised); color: var(--quiet); }\n.status.failed, .status.oom { background: var(--bad-paper); color: var(--bad-ink); }\npre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }\n.missing pre { max-height: 20rem; overflow: auto; background: var(--raised); padding: 0.7rem 0.9rem; border-radius: 6px; }\n.environment { columns: 26rem 2; column-gap: 3rem; }\n.environment .group { break-inside: avoid; margin-bottom: 1.5rem; }\n.environment dl { font-size: 0.875rem; }\n.environment dl > div { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1rem; padding: 0.25rem 0; border-top: 1px solid var(--rule); }\n.environment dt { font-weight: 400; color: var(--quiet); }\n.command { display: flex; gap: 1rem; align-items: flex-start; background: var(--raised); border-radius: 8px; padding: 0.8rem 0.8rem 0.8rem 1.1rem; }\n.command pre { flex: 1; min-width: 0; padding: 0.2rem 0; }\n.command button { flex: none; background: var(--paper); }\n.downloads li { padding: 0.15rem 0; }\n\n@media (max-width: 40rem) {\n  .card, .card.baseline { max-width: none; }\n  .run > section { margin-top: 2.5rem; }\n  .suite h3 .quiet { display: block; margin-left: 0; }\n  dl.missing > div, dl.marks > div { grid-template-columns: 1fr; }\n  .environment { columns: auto; }\n  .results th:first-child, .listing th:first-child { position: sticky; left: 0; background: var(--paper); padding-right: 0.8rem; min-width: 5.5rem; max-width: 7.5rem; z-index: 1; }\n  .results tbody tr:not(.first) th, .listing tbody tr:not(.first) th { color: var(--quiet); }\n  .key.explained li { grid-template-columns: minmax(0, 1fr); }\n  .key.explained li + li { margin-top: 0.3rem; }\n  .key.explained .quiet { padding-left: 2.7rem; line-height: 1.35; }\n  .command { flex-direction: column; }\n}\n\n@media print {\n  :root, :root:not([data-theme=\"light\"]), :root[data-theme=\"dark\"] {\n    color-scheme: light;\n    --paper: #ffffff; --raised: #f6f7f9; --ink: #000000; --quiet: #444b52; --rule: #c9ced4; --grid: #dfe3e7;\n    --accent: #000000; --warn-ink: #6b4200; --warn-paper: #fff5e0; --bad-ink: #a3240f; --bad-paper: #fdeeea;\n  }\n  @page { margin: 16mm 14mm; }\n  body { max-width: none; padding: 0; font-size: 10pt; }\n  .theme, .copy, .downloads a[download]::after, details, .modebar { display: none !important; }\n  .views select { appearance: none; border: 0; padding: 0; }\n  .key li:has(.toggle[aria-pressed=\"false\"]) { display: none; }\n  .run > section { margin-top: 1.6rem; }\n  .card, figure, tr, dl > div { break-inside: avoid; }\n  h2, h3 { break-after: avoid; }\n  .scroll { overflow: visible; }\n  table, caption { font-size: 7.5pt; }\n  thead th { font-size: 7pt; }\n  td small, .mark { font-size: 6.5pt; }\n  td.marks { min-width: 0; }\n  .results .tokens, .results .loss { display: none; }\n  th, td { padding: 0.2rem 0.35rem; }\n  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }\n}\n\n/* The frame of the report: a list at the side, and one view. */\n.report body { max-width: none; padding: 0; display: grid; grid-template-columns: 15.5rem minmax(0, 1fr); grid-template-rows: auto 1fr; align-items: start; min-height: 100vh; }\n.report .masthead { grid-column: 1; padding: 1.5rem 1.5rem 0.75rem; border: 0; gap: 0.5rem; }\n.report .masthead .theme { color: var(--quiet); border-color: transparent; padding: 0.15rem 0.4rem; font-size: 0.75rem; white-space: nowrap; }\n.report .menu { display: none; }\n.report nav { grid-column: 1; padding: 0 1.5rem 2rem; font-size: 0.875rem; }\n.report main { grid-column: 2; grid-row: 1 / 3; padding: 1.25rem clamp(1rem, 3vw, 2.75rem) 1.5rem; max-width: 82rem; width: 100%; border-left: 1px solid var(--rule); min-height: 100vh; }\n.report main:focus { outline: none; }\n.skip { position: absolute; left: -99rem; }\n.skip:focus { left: 1rem; top: 0.5rem; background: var(--paper); padding: 0.4rem 0.8rem; z-index: 5; }\n@media screen {\n  .js .view:not(.open), .row-open .view:not(.row) { display: none; }\n  .report .masthead, .report nav { position: sticky; top: 0; }\n  .report nav { top: 4.2rem; max-height: calc(100vh - 4.2rem); overflow-y: auto; }\n  .js .card .rest.closed { display: none; }\n}\nsection.fold.closed > *:not(h2, .inbrief), figure.fold.closed > *:not(h4) { display: none; }\n.fold:not(.closed) > .inbrief { display: none; }\n\n#nav ol { display: grid; gap: 0.1rem; }\n#nav ol + p, #nav ol + ol { margin-top: 1rem; }\n#unknown { margin-bottom: 1rem; font-size: 0.875rem; }\n#nav li > a { display: block; padding: 0.3rem 0.6rem; margin-left: -0.6rem; border-radius: 6px; color: var(--ink); text-decoration: none; overflow-wrap: anywhere; }\n#nav li > a:hover { background: var(--raised); }\n#nav a[aria-current] { font-weight: 650; }\n#nav a[aria-current=\"page\"] { background: var(--raised); }\n#nav #sections { margin: 0.15rem 0 0.6rem 0.2rem; padding-left: 0.7rem; border-left: 1px solid var(--rule); gap: 0; }\n#nav #sections a { padding: 0.16rem 0.6rem; margin-left: 0; color: var(--quiet); font-size: 0.8125rem; }\n.search { margin-bottom: 1.1rem; position: relative; }\n.search input { width: 100%; font: inherit; font-size: 0.8125rem; color: var(--ink); background: var(--raised); border: 1px solid var(--rule); border-radius: 6px; padding: 0.4rem 0.6rem; }\n.search input::placeholder { color: var(--quiet); opacity: 1; }\n#found { margin-top: 0.4rem; }\n#found small { display: block; color: var(--quiet); font-size: 0.75rem; }\n.search .quiet { font-size: 0.75rem; margin-top: 0.2rem; }\n.keys { margin-top: 1.5rem; font-size: 0.75rem; }\nkbd { font: inherit; border: 1px solid var(--rule); border-radius: 4px; padding: 0 0.3rem; }\n\n.report .identity { padding: 0; gap: 0.3rem; margin-bottom: 1.25rem; }\n.overview .identity { display: block; margin-bottom: 0.8rem; line-height: 1.4; }\n.overview .identity > p.quiet, .overview .identity > .notice { display: inline; }\n.overview .identity > .notice::before { content: \"\u00b7 \"; }\n.report .view, .report h2 { scroll-margin-top: 1.25rem; }\n.about dl { font-size: 0.875rem; line-height: 1.5; }\n.about dl .quiet { font-size: 0.8125rem; }\n.report h1 { font-size: 1.625rem; line-height: 1.2; }\n.report h1:focus { outline: none; }\n.report h1 .quiet { font-size: 1rem; letter-spacing: 0; }\n.report h1 .marker { width: 1.1rem; height: 1.1rem; vertical-align: -0.06em; }\n.report h2 { font-size: 1.1875rem; margin-bottom: 0.6rem; }\n.report .identity .quiet { font-size: 0.8125rem; }\n.report .identity .notice { font-size: 0.8125rem; font-weight: 400; padding: 0; border: 0; background: none; color: var(--quiet); }\n.report .general { font-size: inherit; max-width: none; margin: 0; color: inherit; }\n.report .identity .notice.general { color: inherit; font-weight: 600; }\n.trail { font-size: 0.8125rem; display: flex; gap: 0.4rem; }\n.trail a { text-decoration: none; }\n.trail a + a::before { content: \"/\"; color: var(--quiet); padding-right: 0.4rem; }\n.run > .view { margin-top: 0; }\n.view > section + section { margin-top: 2.75rem; }\n.view .tables figure { margin-top: 0.75rem; }\n.marker { flex: none; vertical-align: -0.1em; }\n.found > h2 { background: var(--warn-paper); }\n\n/* Overview: one card for each suite. */\n.board { display: grid; gap: 0.9rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }\n.board[data-count=\"one\"] { grid-template-columns: minmax(0, 66rem); }\n.board[data-count=\"many\"] { grid-template-columns: repeat(auto-fill, minmax(21rem, 1fr)); }\n.suitecard { border: 1px solid var(--rule); border-radius: 10px; padding: 0.75rem 1.1rem 0.8rem; display: flex; flex-direction: column; min-width: 0; }\n.suitecard h2 { margin: 0; display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 0.6rem; }\n.suitecard h2 a { color: inherit; text-decoration: none; }\n.suitecard h2 a:hover { text-decoration: underline; }\n.suitecard h2 .quiet { font-size: 0.8125rem; letter-spacing: 0; }\n.suitecard .verdict { font-size: 0.875rem; line-height: 1.4; margin: 0.15rem 0 0.6rem; min-height: 2.8em; }\n.board[data-count=\"one\"] .verdict { min-height: 0; font-size: 1rem; }\n.shown { display: grid; grid-template-columns: minmax(0, 13.8rem) minmax(0, 1fr); gap: 0.4rem 1rem; align-items: start; }\n.board[data-count=\"one\"] .shown { grid-template-columns: minmax(0, 20rem) minmax(14rem, 32rem); gap: 0.4rem 2.5rem; }\n.board[data-count=\"many\"] .shown { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }\n.shown > .of:only-child { grid-column: 1 / -1; }\n.of > .caption { margin: 0; font-size: 0.75rem; line-height: 1.3; }\n/* From five suites on, a suite is a line: all of them fit one screen. */\n@media screen and (min-width: 60rem) {\n  .board[data-count=\"many\"] { grid-template-columns: minmax(0, 1fr); gap: 0; border-top: 1px solid var(--rule); }\n  .board[data-count=\"many\"] .suitecard { display: grid; grid-template-columns: 7.2rem 6rem 6.6rem minmax(0, 30fr) minmax(0, 40fr); gap: 0 0.8rem; align-items: start; border: 0; border-bottom: 1px solid var(--rule); border-radius: 0; padding: 0.15rem 0; font-size: 0.75rem; line-height: 1.28; }\n  .board[data-count=\"many\"] .suitecard > * { grid-row: 1; }\n  .board[data-count=\"many\"] .suitecard > h2 { grid-column: 1; font-size: 0.875rem; display: block; overflow-wrap: anywhere; line-height: 1.28; }\n  .board[data-count=\"many\"] .suitecard > h2 .quiet { display: block; font-size: 0.75rem; font-weight: 400; }\n  .board[data-count=\"many\"] .shown { display: contents; }\n  .board[data-count=\"many\"] .effchart { grid-column: 2; grid-row: 1; overflow: visible; width: 5.2rem; margin: 0 0 -0.75rem 0.8rem; }\n  .board[data-count=\"many\"] .effchart text { font-size: 23px; }\n  .board[data-count=\"many\"] .effchart text:nth-of-type(2), .board[data-count=\"many\"] .effchart text:nth-of-type(n + 4) { display: none; }\n  .board[data-count=\"many\"] .effchart :is(polyline, line, path) { vector-effect: non-scaling-stroke; }\n  .board[data-count=\"many\"] .operations { display: none; }\n  .board[data-count=\"many\"] .of { display: contents; }\n  .board[data-count=\"many\"] .of > .caption { display: none; }\n  .board[data-count=\"many\"] .ranked { grid-column: 3; grid-row: 1; font-size: inherit; padding: 0; }\n  .board[data-count=\"many\"] .ranked li { grid-template-columns: 1rem minmax(0, 1fr); gap: 0 0.3rem; }\n  .board[data-count=\"many\"] .ranked li:nth-child(n + 2) { display: none; }\n  .board[data-count=\"many\"] .ranked :is(.value, .interval) { grid-column: 1 / -1; grid-row: auto; text-align: left; }\n  .board[data-count=\"many\"] .verdict, .board[data-count=\"many\"] .brief dd { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }\n  .board[data-count=\"many\"] .brief dd { -webkit-line-clamp: 1; }\n  .board[data-count=\"many\"] .brief .next dd { -webkit-line-clamp: 2; }\n  .overview:has(.board[data-count=\"many\"]) .tryfirst { padding: 0; grid-template-columns: 4rem minmax(0, 1fr); line-height: 1.35; }\n  .overview:has(.board[data-count=\"many\"]) .tryfirst li { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }\n  .board[data-count=\"many\"] .verdict { grid-column: 4; min-height: 0; margin: 0; font-size: inherit; line-height: inherit; }\n  .board[data-count=\"many\"] .brief { grid-column: 5; margin: 0; padding: 0; font-size: inherit; line-height: inherit; gap: 0; }\n  .board[data-count=\"many\"] .brief > div { grid-template-columns: 4.5rem minmax(0, 1fr); }\n}\n.effchart { width: 100%; height: auto; display: block; }\n.effchart text { font-size: 11px; fill: var(--quiet); }\n.effchart .grid { stroke: var(--grid); }\n.effchart .ideal { stroke: var(--quiet); stroke-dasharray: 2 3; }\n.effchart [data-row] { cursor: pointer; }\n.effchart [data-row]:hover path { stroke-width: 4; }\n.ranked { display: grid; gap: 0.1rem; font-size: 0.8125rem; padding-top: 0.1rem; }\n.ranked li { display: grid; grid-template-columns: 1rem minmax(0, 1fr) 3.2rem 3.6rem; gap: 0 0.3rem; align-items: center; }\n.board[data-count=\"one\"] .ranked li { grid-template-columns: 1rem minmax(0, 1fr) 14rem 4.4rem; }\n.ranked li > a, .ranked li > span:not(.value, .interval) { color: var(--ink); text-decoration: none; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }\n.ranked li > a:hover { text-decoration: underline; }\n.ranked .value { font-variant-numeric: tabular-nums; font-weight: 600; text-align: right; grid-column: 4; white-space: nowrap; }\n.ranked li:not(:has(.interval)) .value { grid-column: 3 / -1; }\n.ranked .doubt { color: var(--warn-ink); text-decoration: none; cursor: help; }\n.ranked .noisy .value { color: var(--quiet); font-weight: 400; }\n.ranked .interval { margin: 0; grid-column: 3; grid-row: 1; }\n@media screen and (min-width: 52rem) and (max-width: 90rem) {\n  /* Two cards share the width: a case's name matters more than its interval. */\n  .board[data-count=\"few\"] .ranked li { grid-template-columns: 1rem minmax(0, 1fr) 3.6rem; }\n  .board[data-count=\"few\"] .ranked .interval { display: none; }\n  .board[data-count=\"few\"] .ranked .value { grid-column: 3; }\n}\n.ranked .more { display: block; }\n.ranked .more a { color: var(--accent); }\n.brief { margin-top: auto; padding-top: 0.4rem; font-size: 0.8125rem; line-height: 1.45; display: grid; gap: 0.15rem; }\n.brief > div, .runfacts > div { display: grid; grid-template-columns: 6.2rem minmax(0, 1fr); gap: 0.6rem; }\n.brief dt, .runfacts dt { color: var(--quiet); font-weight: 400; }\n.brief .next dd { font-weight: 600; }\n.tryfirst { margin: 0 0 0.7rem; display: grid; grid-template-columns: 6.2rem minmax(0, 1fr); gap: 0 0.6rem; padding: 0 1.1rem; font-size: 0.8125rem; line-height: 1.45; }\n.report .tryfirst h2 { font-size: inherit; line-height: inherit; font-weight: 650; letter-spacing: 0; margin: 0; }\n.tryfirst li > span { font-weight: 600; }\n.tryfirst li > .quiet { font-weight: 400; font-size: inherit; }\n.tryfirst a { color: inherit; }\n.runfacts { margin-top: 0.9rem; font-size: 0.8125rem; line-height: 1.45; display: grid; gap: 0.2rem; padding: 0 1.1rem; }\n.runfacts a { color: inherit; }\n\n/* An efficiency with its interval; a loss budget as a strip. */\n.interval { position: relative; display: block; height: 9px; margin: 0.35rem 0; }\n.interval::before { content: \"\"; position: absolute; left: 0; right: 0; top: 4px; height: 1px; background: var(--rule); }\n.interval i { position: absolute; top: 0; bottom: 0; }\n.interval .reach { background: var(--case, var(--quiet)); opacity: 0.32; border-radius: 2px; min-width: 3px; }\n.interval .point { width: 3px; margin-left: -1.5px; background: var(--case, var(--quiet)); border-radius: 1px; }\n.interval .ideal { width: 0; border-left: 1px dotted var(--quiet); }\n.interval.noisy { --case: var(--quiet) !important; }\n.interval.noisy .reach { background: repeating-linear-gradient(90deg, var(--quiet) 0 1px, transparent 1px 4px); opacity: 0.6; }\n.strip { display: flex; align-items: center; height: 14px; margin: 0.5rem 0; }\n.strip i { height: 12px; min-width: 1px; border: solid var(--paper); border-width: 0 1px 0 0; }\n.strip i, .stripkey i { background: var(--part, var(--quiet)); }\n.strip .unsure, .stripkey .unsure { background: repeating-linear-gradient(135deg, var(--part, var(--quiet)) 0 2px, transparent 2px 5px); }\n.strip span { font-size: 0.75rem; color: var(--quiet); padding-left: 0.4rem; white-space: nowrap; flex: none; }\n.card .strip i, .row .strip i { flex: 0 1 auto; }\n.stripkey { display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; font-size: 0.8125rem; color: var(--quiet); margin-bottom: 0.8rem; }\n.stripkey i { display: inline-block; width: 11px; height: 11px; margin-right: 0.4rem; vertical-align: -1px; }\n.stripkey b { font-weight: 600; color: var(--ink); font-variant-numeric: tabular-nums; }\n\n/* A case in at most eight lines. */\n.report .cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.1rem; align-items: start; }\n.report .card { position: relative; max-width: none; border-top-width: 1px; border-radius: 10px; padding: 0.9rem 1.1rem 1rem; }\n.report .card.baseline { display: block; flex: none; }\n.report .card.baseline .headline { margin-top: 0.1rem; }\n.report .card h3 { display: flex; gap: 0.35rem; align-items: baseline; padding-right: 3.2rem; font-size: 0.9375rem; overflow-wrap: anywhere; }\n.report .card h3 a { color: inherit; text-decoration: none; }\n.report .card h3 a:hover { text-decoration: underline; }\n.report .card .headline { align-items: baseline; flex-wrap: nowrap; margin: 0.1rem 0 0.3rem; }\n.report .card .headline .where { display: inline; font-size: 0.8125rem; }\n.report .card .big { font-size: 1.5rem; line-height: 1.3; letter-spacing: -0.02em; }\n.report .card.baseline .big, .report .card.failed .big, .report .card.inconclusive .big { font-size: 1.1875rem; line-height: 1.64; }\n.report .card.noisy .big, .report .card.noisy .share { color: var(--quiet); font-weight: 500; }\n.report .card .share { font-weight: 600; white-space: nowrap; font-variant-numeric: tabular-nums; }\n.report .card .sentence, .report .card .advice { font-size: 0.875rem; line-height: 1.42; margin-top: 0.35rem; }\n.report .card .advice::before, .row .advice::before { content: \"\u2192 \"; color: var(--quiet); }\n.moretext { position: absolute; top: 0.75rem; right: 0.7rem; border-color: transparent; color: var(--accent); padding: 0.1rem 0.4rem; }\n.rest { border-top: 1px solid var(--rule); margin-top: 0.7rem; padding-top: 0.6rem; font-size: 0.8125rem; line-height: 1.5; display: grid; gap: 0.35rem; }\n.rest .notes { margin: 0; }\n.report .barkey { flex-wrap: wrap; gap: 0.2rem 1.6rem; font-size: 0.8125rem; }\n.barkey > span { display: inline-flex; align-items: center; gap: 0.6rem; }\n.barkey .interval, .barkey .strip { flex: none; }\n.barkey .interval { display: inline-block; width: 3rem; margin: 0; }\n.barkey .interval .reach { left: 25%; width: 50%; }\n.barkey .interval .point { left: 50%; }\n.barkey .strip { width: 3rem; margin: 0; }\n.barkey .strip i { width: 50%; }\n\n.report .results tr[data-row], .report tr[data-row], td[data-row] { cursor: pointer; }\n.report tbody tr[data-row]:hover > *, td[data-row]:hover { background: var(--raised); }\n.report .results { font-size: 0.8125rem; }\n.report .results th, .report .results td { padding: 0.36rem 0.42rem; }\n.report .results th:first-child { padding-left: 0; }\n.report .results tbody th { min-width: 5rem; }\n.report .results td.marks { min-width: 6.4rem; }\n.report .mark { font-size: 0.6875rem; }\n.row .placed th:first-child, .row .placed td:nth-child(2), .row .placed th:nth-child(2) { display: none; }\n.row .placed td:nth-child(3), .row .placed th:nth-child(3) { padding-left: 0; }\n.report .listing { font-size: 0.8125rem; }\n.report .conclusion, .report figcaption { font-size: 1rem; max-width: 52rem; }\n.report .tables .quiet, .report figure .note { max-width: 56rem; font-size: 0.8125rem; }\n.report .key .toggle, .report .key .quiet { font-size: 0.8125rem; }\n.report .key.explained { gap: 0; }\n.report td a { color: inherit; text-decoration-color: var(--rule); }\ntr.noisy td.efficiency, tr.noisy td.speedup { font-weight: 400; color: var(--quiet); }\n\n/* Two columns where there is room. */\n@media screen and (min-width: 80rem) {\n  .suiteview { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 2.5rem; align-items: start; }\n  .suiteview > * { grid-column: 1 / -1; }\n  .suiteview > .half { grid-column: auto; }\n}\n.fold { border-top: 1px solid var(--rule); padding-top: 0.8rem; }\n.view > .fold + .fold { margin-top: 0.9rem; }\n.fold h2 { margin-bottom: 0; }\n.report figure.fold { border: 0; padding: 0; }\n.report figure.fold h4 { margin: 1.2rem 0 0; }\n.fold h4 button { font: inherit; border: 0; padding: 0.15rem 0; color: var(--quiet); font-weight: 400; }\n.fold h4 button:hover { background: none; text-decoration: underline; }\n.fold h4 button::before { content: \"\u25b8 \"; }\n.fold:not(.closed) h4 button::before { content: \"\u25be \"; }\n.fold h2 button { font: inherit; font-size: 1.0625rem; border: 0; padding: 0.15rem 0; display: flex; gap: 0.55rem; align-items: baseline; letter-spacing: inherit; }\n.fold h2 button:hover { background: none; text-decoration: underline; }\n.fold h2 button::before { content: \"\u25b8\"; color: var(--quiet); font-size: 0.9rem; }\n.fold:not(.closed) h2 button::before { content: \"\u25be\"; }\n.fold:not(.closed) { padding-bottom: 1.5rem; }\n.inbrief { cursor: pointer; padding-left: 1.4rem; max-width: 60rem; }\n\n.term { color: inherit; text-decoration: underline dotted; text-decoration-color: var(--quiet); text-underline-offset: 0.2em; cursor: help; }\n#tip { position: fixed; z-index: 9; max-width: 22rem; background: var(--ink); color: var(--paper); font-size: 0.8125rem; line-height: 1.45; border-radius: 6px; padding: 0.5rem 0.75rem; pointer-events: none; }\n\n.report .comparison { padding-top: 0; border: 0; margin: 0; }\n.report .runs { padding: 0; border: 0; }\n.comparison > .verdict { font-size: 1.0625rem; margin-bottom: 0.9rem; }\n.comparison .barkey { margin-bottom: 2rem; }\n.report .ranked.changed { gap: 0.35rem; }\n.report .ranked.changed li { grid-template-columns: 1rem minmax(0, 1fr) auto; }\n.ranked.changed .value { grid-column: 3; }\n.ranked.changed small { color: var(--quiet); font-weight: 400; }\n.ranked.changed .interval { grid-column: 2 / -1; grid-row: 2; margin-top: 0.15rem; }\n\n/* What is taken along. */\n.take { position: absolute; top: 1.4rem; right: clamp(1rem, 3vw, 2.75rem); display: flex; gap: 0.4rem; }\n.take button { font-size: 0.75rem; color: var(--quiet); }\n.overview { position: relative; }\n.overview .take { top: 0.2rem; right: 0; }\n.overview h1 { padding-right: 15rem; }\n.pictured { padding: 24px; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, \"Segoe UI\", Roboto, \"Helvetica Neue\", sans-serif; }\n.pictured .view { display: block !important; }\n.picture nav, .picture .masthead, .picture .keys, .picture .take { display: none !important; }\n.picture body { display: block; }\n.picture .report main, .report.picture main { border: 0; max-width: none; }\n\n/* A row. */\n.sizes { display: flex; flex-wrap: wrap; gap: 0.35rem; margin-top: 0.4rem; font-size: 0.8125rem; }\n.sizes a { border: 1px solid var(--rule); border-radius: 6px; padding: 0.15rem 0.6rem; text-decoration: none; color: var(--ink); display: block; }\n.sizes a[aria-current] { background: var(--ink); color: var(--paper); border-color: var(--ink); }\n.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: 0.9rem 1.4rem; margin-bottom: 1rem; }\n.facts dt { font-size: 0.8125rem; color: var(--quiet); font-weight: 400; }\n.facts dd { font-size: 1.0625rem; font-weight: 600; font-variant-numeric: tabular-nums; }\n.facts small { display: block; font-size: 0.75rem; font-weight: 400; color: var(--quiet); }\n.row .interval { max-width: 36rem; height: 12px; margin: 0.6rem 0; }\n.row .interval::before { top: 6px; }\n.row .strip { max-width: 36rem; height: 18px; }\n.row .strip i { height: 16px; }\n.row .sentence { max-width: 52rem; }\n.row .tables h3 { margin: 1.4rem 0 0.3rem; font-size: 0.9375rem; }\n.rawtext { max-height: 32rem; overflow: auto; background: var(--raised); padding: 0.8rem 1rem; border-radius: 8px; margin-top: 0.8rem; }\n.rawhint { margin-bottom: 0.5rem; }\n\n@media screen and (max-width: 60rem) {\n  .board, .board[data-count=\"many\"] { grid-template-columns: minmax(0, 1fr); }\n}\n@media screen and (max-width: 52rem) {\n  .report body { display: block; }\n  .report .masthead { position: sticky; top: 0; z-index: 3; background: var(--paper); padding: 0.7rem 1rem; border-bottom: 1px solid var(--rule); }\n  .report .wordmark { margin-right: auto; }\n  .js .menu { display: block; order: 3; }\n  .report main { border: 0; padding: 1rem 1rem 3rem; min-height: 0; }\n  .report nav { position: static; max-height: none; padding: 1rem; border-bottom: 1px solid var(--rule); }\n  .js:not(.menu-open) nav { display: none; }\n  .js.menu-open nav { position: sticky; top: 3.2rem; z-index: 2; background: var(--paper); max-height: 75vh; overflow-y: auto; }\n  #nav li > a { padding: 0.5rem 0.6rem; }\n  .report h1 { font-size: 1.375rem; }\n  .overview .take { position: static; }\n  .overview h1 { padding-right: 0; }\n}\n@media screen and (max-width: 34rem) {\n  .shown, .board[data-count] .shown, .tryfirst { grid-template-columns: minmax(0, 1fr); }\n  .ranked, .board[data-count] .ranked { gap: 0.45rem; }\n  .ranked li, .board[data-count] .ranked li { grid-template-columns: 1rem minmax(0, 1fr) auto; }\n  .ranked li > :is(a, span):not(.value, .interval) { white-space: normal; overflow-wrap: anywhere; }\n  .ranked .interval { grid-column: 2 / -1; grid-row: 2; }\n  .ranked .value, .ranked li:not(:has(.interval)) .value { grid-column: 3; }\n  .tryfirst li + li { margin-top: 0.3rem; }\n  .effchart { max-width: 22rem; }\n  .suitecard { padding: 0.85rem 0.95rem; }\n  .brief > div, .runfacts > div { grid-template-columns: 1fr; gap: 0; }\n  .brief > div + div { margin-top: 0.3rem; }\n  .keys { display: none; }\n}\n\n@media print {\n  .report body { display: block; min-height: 0; }\n  .report nav, .report .menu, .skip, .keys, .moretext, .report .masthead .theme, .sizes, .take, .raw, .rawfile, .rawhint, figure.fold.closed { display: none !important; }\n  .report .masthead { padding: 0 0 0.5rem; }\n  .report main { border: 0; padding: 0; max-width: none; min-height: 0; }\n  .row-open .view:not(.row) { display: none; }\n  #tip, .words { display: none; }\n  .view + .suiteview { break-before: page; }\n  .suiteview + .view { break-before: page; }\n  .rest { display: none; }\n  .board { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 4mm; }\n  .suitecard, .report .card { break-inside: avoid; }\n  .shown { grid-template-columns: minmax(0, 1fr); }\n  .report .cards { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 3mm; }\n  .report .card { padding: 2mm 3mm; }\n  .report .card .big { font-size: 13pt; }\n  .report .card :is(.sentence, .advice), .report .card .headline .where { font-size: 8pt; margin-top: 0.15rem; }\n  .report .results { font-size: 7pt; }\n  .report .results :is(th, td) { padding: 0.12rem 0.3rem; }\n  .report .results td.marks { min-width: 0; }\n  .report .results tbody th { min-width: 0; }\n  .view > section + section { margin-top: 4mm; }\n  .view > .fold + .fold { margin-top: 1mm; }\n  .report .tables :is(.conclusion, figcaption), .report .inbrief { font-size: 9pt; }\n  .report .tables .quiet, .report .figure .note, .report .key :is(.toggle, .quiet) { font-size: 8pt; }\n  .report h2, .report .fold h2 button { font-size: 12pt; }\n  .report .ranking { font-size: 10pt; }\n  .report .card h3 { padding-right: 0; }\n  .tryfirst, .runfacts { padding: 0; }\n  .report .fold { padding-top: 1mm; }\n  .report .fold h2 { margin: 0; }\n  /* Two figures side by side; of a section that stays closed, only the first, its numbers are in the results. */\n  .suiteview { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 6mm; align-items: start; }\n  .suiteview > * { grid-column: 1 / -1; }\n  .suiteview > .half { grid-column: auto; }\n  .half .chart { height: 250px !important; }\n  .suiteview > .tables:not(.fold) figure ~ figure { display: none; }\n  .fold h2 button::before { content: none !important; }\n}\n.no-figures .chart::before { content: \"This browser cannot unpack the figures. Their numbers are in the tables.\"; color: var(--quiet); }\n" }));
  document.body.replaceWith(document.adoptNode(page.body));
};

openPage().then(() => {
"use strict";
(() => {
const root = document.documentElement;
// Light, dark, or as the system has it; remembered.
const themes = ["system", "light", "dark"];

const remembered = () => {
  try {
    return localStorage.getItem("scalebench-theme");
  } catch {
    return null;
  }
};

const remember = (theme) => {
  try {
    localStorage.setItem("scalebench-theme", theme);
  } catch {
    // Storage is refused in some sandboxes; the switch works for this view all the same.
  }
};

const themeButton = document.getElementById("theme");

const applyTheme = (theme) => {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  themeButton.textContent = `theme: ${theme}`;
  themeButton.dataset.current = theme;
};

const startTheme = () => {
  const stored = remembered();
  applyTheme(themes.includes(stored) ? stored : "system");
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(themeButton.dataset.current) + 1) % themes.length];
    applyTheme(next);
    remember(next);
  });
};

// Figures are drawn when they come into view, one after another.

// What is shown of a chart: the traces of its chosen view, less those that are switched off.
const shown = new Map();
const numbers = (text) => (text ? text.split(",").map(Number) : []);
const hasPlotly = () => typeof Plotly !== "undefined";
const isDrawn = (chart) => chart.classList.contains("js-plotly-plot");
const selectOf = (id) => document.querySelector(`.views select[data-chart="${CSS.escape(id)}"]`);

const stateOf = (id) => {
  if (!shown.has(id)) {
    const off = new Set();
    for (const button of document.querySelectorAll('.toggle[aria-pressed="false"]')) {
      if (button.dataset.chart === id) numbers(button.dataset.traces).forEach((i) => off.add(i));
    }
    shown.set(id, { view: null, off });
  }
  return shown.get(id);
};

const visibleOf = (id, count) => {
  const { view, off } = stateOf(id);
  return Array.from({ length: count }, (_, i) => !off.has(i) && (view === null || view.has(i)));
};

const show = (id, layout = {}) => {
  const chart = document.getElementById(id);
  if (!isDrawn(chart)) return;
  Plotly.update(chart, { visible: visibleOf(id, chart.data.length) }, layout);
};

const choose = (select) => {
  const { traces, layout, height } = select.selectedOptions[0].dataset;
  const id = select.dataset.chart;
  stateOf(id).view = traces ? new Set(numbers(traces)) : null;
  if (height) document.getElementById(id).style.height = `${height}px`;
  show(id, JSON.parse(layout));
};

// Write "yaxis.range" and the like into a layout that is not drawn yet.
const setDeep = (layout, changes) => {
  for (const [path, value] of Object.entries(changes)) {
    const names = path.split(".");
    const last = names.pop();
    let place = layout;
    for (const name of names) place = place[name] ??= {};
    place[last] = value;
  }
};

const specOf = (chart) =>
  JSON.parse(document.getElementById(`${chart.dataset.source || chart.id}-spec`).textContent);

// The view of a row shows one of the views of its suite's figure.
const borrow = (chart, spec) => {
  stateOf(chart.id).view = chart.dataset.shown ? new Set(numbers(chart.dataset.shown)) : null;
  const visible = visibleOf(chart.id, spec.data.length);
  spec.data.forEach((trace, i) => {
    trace.visible = visible[i];
  });
  setDeep(spec.layout, JSON.parse(chart.dataset.layout));
  delete spec.layout.height;
};

const draw = (chart, size = {}) => {
  if (isDrawn(chart) || !hasPlotly()) return;
  const spec = specOf(chart);
  if (chart.dataset.source) borrow(chart, spec);
  Object.assign(spec.layout, size);
  Plotly.newPlot(chart, spec.data, spec.layout, {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
  });
  chart.on("plotly_click", (event) => openPoint(chart, event.points[0]));
  const select = selectOf(chart.id);
  if (select) {
    const { traces } = select.selectedOptions[0].dataset;
    stateOf(chart.id).view = traces ? new Set(numbers(traces)) : null;
    if (select.selectedIndex > 0) choose(select);
  }
};

const waiting = [];
let drawing = false;

// The page answers before plotly's script, which is long, has been read.
const awaitPlotly = async () => {
  if (hasPlotly()) return;
  if (document.readyState === "loading") {
    await new Promise((go) => addEventListener("DOMContentLoaded", go, { once: true }));
  }
  await window.scalebenchPlotly?.();
};

const drawNext = async () => {
  if (waiting.length) await awaitPlotly();
  const chart = waiting.shift();
  if (chart === undefined) {
    drawing = false;
    markReady();
    return;
  }
  if (chart.isConnected && chart.offsetParent !== null) draw(chart);
  setTimeout(drawNext, 0);
};

const markReady = () => {
  root.dataset.ready = "true";
  if (performance.getEntriesByName("scalebench-ready").length === 0) {
    performance.mark("scalebench-ready");
  }
};

const enqueue = (charts) => {
  waiting.push(...charts);
  if (drawing) return;
  drawing = true;
  setTimeout(drawNext, 0);
};

const AHEAD_PX = 400;
const inSight =
  typeof IntersectionObserver === "undefined"
    ? null
    : new IntersectionObserver(
        (entries) => {
          const near = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
          near.forEach((chart) => inSight.unobserve(chart));
          enqueue(near.filter((chart) => !isDrawn(chart)));
        },
        { rootMargin: `${AHEAD_PX}px 0px` },
      );

const watchCharts = (within) => {
  const charts = [...within.querySelectorAll(".chart")].filter((chart) => !isDrawn(chart));
  if (inSight) charts.forEach((chart) => inSight.observe(chart));
  else enqueue(charts);
};

const forgetCharts = (within) => {
  for (const chart of within.querySelectorAll(".chart")) {
    inSight?.unobserve(chart);
    shown.delete(chart.id);
    if (isDrawn(chart)) Plotly.purge(chart);
  }
};

const startCharts = () => {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".toggle");
    if (!button) return;
    const pressed = button.getAttribute("aria-pressed") !== "true";
    const { off } = stateOf(button.dataset.chart);
    button.setAttribute("aria-pressed", String(pressed));
    numbers(button.dataset.traces).forEach((i) => (pressed ? off.delete(i) : off.add(i)));
    show(button.dataset.chart);
  });
  for (const select of document.querySelectorAll(".views select")) {
    select.addEventListener("change", () => choose(select));
  }
};

// What a word means, at a glance: on hover, on focus, or at a tap.
const startTerms = () => {
  const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  const termOf = (event) => event.target.closest?.("a.term");

  const hide = () => {
    tip.hidden = true;
    document.querySelector("[aria-describedby='tip']")?.removeAttribute("aria-describedby");
  };

  const tell = (term) => {
    const found = document.getElementById(term.hash.slice(1));
    if (!found) return;
    hide();
    tip.textContent = found.querySelector("dd").textContent;
    tip.hidden = false;
    term.setAttribute("aria-describedby", "tip");
    const place = term.getBoundingClientRect();
    const { width, height } = tip.getBoundingClientRect();
    const below = place.bottom + height + 12 < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
    tip.style.top = `${below ? place.bottom + 6 : place.top - height - 6}px`;
  };

  for (const kind of ["mouseover", "focusin"]) {
    document.addEventListener(kind, (event) => (termOf(event) ? tell(termOf(event)) : hide()));
  }
  document.addEventListener("click", (event) => {
    const term = termOf(event);
    if (!term) return;
    event.preventDefault();
    tell(term);
  });
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("hashchange", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || tip.hidden) return;
    event.stopImmediatePropagation();
    hide();
  });
};

// One view at a time: the overview, a suite, a row; which one stands behind "#".
const views = new Map();
const rows = new Map();
let open = null;
let openRow = null;
const scrolled = new Map();

const tidy = (path) =>
  path
    .split("/")
    .map((part) => {
      let plain = part;
      try {
        plain = decodeURIComponent(part);
      } catch {
        // Not an address of this page: it is looked up as it is.
      }
      return encodeURIComponent(plain).replaceAll("%3D", "=");
    })
    .join("/");

const here = () => tidy(location.hash.slice(1));

const viewOf = (element) => element.closest(".view");

// What an address leads to: a view, a row, or the view around an element.
const lookUp = (path) => {
  if (views.has(path)) return { view: views.get(path) };
  if (rows.has(path)) return { row: rows.get(path) };
  let id = path;
  try {
    id = decodeURIComponent(path);
  } catch {
    return null;
  }
  const element = document.getElementById(id) || document.getElementById(legacy(id));
  if (!element) return null;
  const view = viewOf(element) || element.querySelector(".view");
  return view ? { view, element } : null;
};

// Addresses of earlier versions: run-1-speedup led to the first suite's.
const legacy = (id) => id.replace(/^(run-\d+)-([a-z]+)$/, "$1-suite-1-$2");

const linksTo = (path) => document.querySelectorAll(`#nav a[href="#${CSS.escape(path)}"]`);

const markCurrent = (path, suitePath) => {
  for (const link of document.querySelectorAll("#nav a[aria-current]")) {
    link.removeAttribute("aria-current");
  }
  for (const link of linksTo(suitePath)) {
    link.setAttribute("aria-current", suitePath === path ? "page" : "true");
  }
};

// Under the open suite the list at the side has its sections.
const listSections = (view, path) => {
  document.getElementById("sections")?.remove();
  const titles = [...view.querySelectorAll("h2[id]")];
  const [link] = linksTo(path);
  if (!link || titles.length < 3) return;
  const list = Object.assign(document.createElement("ol"), { id: "sections" });
  for (const title of titles) {
    if (title.closest(".suitecard, .tryfirst")) continue;
    const entry = document.createElement("a");
    entry.href = `#${title.id}`;
    entry.textContent = title.textContent.trim();
    entry.addEventListener("click", (event) => {
      event.preventDefault();
      reveal(title);
    });
    const item = document.createElement("li");
    item.append(entry);
    list.append(item);
  }
  if (list.children.length) link.after(list);
};

const reveal = (element) => {
  const fold = element.closest(".fold");
  if (fold) setFold(fold, true);
  element.scrollIntoView({ block: "start" });
  element.closest("section")?.classList.add("found");
  setTimeout(() => element.closest("section")?.classList.remove("found"), 1200);
};

const closeRow = () => {
  if (!openRow) return;
  forgetCharts(openRow);
  openRow.remove();
  openRow = null;
  root.classList.remove("row-open");
};

// Titles of tables and figures stand one level below their section's.
const levelTitles = (within) => {
  for (const title of within.querySelectorAll("h4")) {
    const below = title.closest("section")?.querySelector("h2");
    title.setAttribute("aria-level", below ? "3" : "2");
  }
};

// The views of rows are packed together; they are unpacked before the first one is opened.
const packs = new Map();
const packOf = (run) => {
  if (!packs.has(run)) {
    const place = document.getElementById(`${run}-rows`);
    packs.set(run, unpackedText(place.textContent).json());
  }
  return packs.get(run);
};

const build = async (template) => {
  const found = await packOf(template.dataset.run);
  const holder = document.createElement("template");
  holder.innerHTML = found[template.dataset.view];
  const view = holder.content.firstElementChild;
  closeRow();
  levelTitles(view);
  template.before(view);
  openRow = view;
  root.classList.add("row-open");
  startRaw(view, template);
  return view;
};

const pageTitle = document.title;

const go = async (focus = true) => {
  const path = here();
  const target = lookUp(path);
  const unknown = document.getElementById("unknown");
  unknown.hidden = target !== null;
  if (target === null) {
    unknown.textContent = `This page has nothing at “${path.slice(0, 120)}”: here is the overview.`;
  }
  const start = views.get("") || views.values().next().value;
  if (!start) return;
  delete root.dataset.ready;
  const found = target || { view: start };
  closeRow();
  const view = found.row ? await build(found.row) : found.view;
  if (path !== here()) {
    if (found.row) closeRow();
    return;
  }
  root.dataset.open = path;
  open?.classList.remove("open");
  open = view;
  view.classList.add("open");
  const suitePath = found.row ? found.row.dataset.suite : view.dataset.view;
  markCurrent(path, suitePath);
  listSections(found.row ? views.get(suitePath) : view, suitePath);
  if (found.row) document.getElementById("sections")?.remove();
  const title = view.dataset.title;
  document.title = title === "Overview" ? pageTitle : `${title} · ${pageTitle}`;
  setMenu(false);
  if (found.element && found.element !== view) reveal(found.element);
  else scrollTo(0, scrolled.get(path) || 0);
  if (focus && !found.element) view.querySelector("h1")?.focus({ preventScroll: true });
  watchCharts(view);
  enqueue([]);
  watchScroll(path);
};

let current = "";
const watchScroll = (path) => {
  current = path;
};

const setFold = (fold, opened) => {
  fold.classList.toggle("closed", !opened);
  fold.querySelector("h2 button, h4 button").setAttribute("aria-expanded", String(opened));
};

// A section below the first ones is a line: its title and its conclusion.
const startFolds = () => {
  for (const fold of document.querySelectorAll(".fold")) {
    const title = fold.querySelector("h2, h4");
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: title.textContent });
    title.replaceChildren(button);
    const said = fold.querySelector(".conclusion, figcaption");
    if (said && title.matches("h2")) {
      const brief = document.createElement("p");
      Object.assign(brief, { className: "inbrief quiet", textContent: said.textContent });
      brief.addEventListener("click", () => button.click());
      title.after(brief);
    }
    setFold(fold, false);
    button.addEventListener("click", () => {
      setFold(fold, fold.classList.contains("closed"));
    });
  }
};

// What a card says beyond its lines comes at a click.
const startCards = () => {
  for (const rest of document.querySelectorAll(".card .rest")) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "moretext", textContent: "more" });
    const name = rest.closest(".card").querySelector("h3").textContent.trim();
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `more about ${name}`);
    rest.classList.add("closed");
    button.addEventListener("click", () => {
      const closed = rest.classList.toggle("closed");
      button.setAttribute("aria-expanded", String(!closed));
      button.textContent = closed ? "more" : "less";
    });
    rest.before(button);
  }
};

const menuButton = document.getElementById("menu");
const setMenu = (opened) => {
  if (!menuButton) return;
  menuButton.setAttribute("aria-expanded", String(opened));
  root.classList.toggle("menu-open", opened);
};

// Rows are opened from tables, from marks of the small pictures, and from figures.
const openPath = (path) => {
  if (path && path !== here()) location.hash = path;
};

const openPoint = (chart, point) => {
  if (!point) return;
  const suite = viewOf(chart)?.dataset.view;
  const hover = [point.customdata].flat().find((text) => typeof text === "string") || "";
  const name = point.data?.name;
  const told = hover.startsWith("<b>") ? hover : `<b>${name}</b>, ${hover}`;
  const place = selectOf(chart.id)?.selectedOptions[0].textContent;
  let best = null;
  let length = 0;
  for (const template of rows.values()) {
    if (suite && template.dataset.suite !== suite && !viewOf(chart).matches(".comparison")) continue;
    for (const text of JSON.parse(template.dataset.texts)) {
      if (text.length > length && told.startsWith(text)) [best, length] = [template, text.length];
    }
    if (!best && place && place === template.dataset.place) best = template;
  }
  if (best) openPath(tidy(best.dataset.view));
};

const siblings = () => {
  const paths = openRow
    ? [...rows.values()].map((template) => tidy(template.dataset.view))
    : [...views.keys()];
  return [paths, paths.indexOf(here())];
};

const up = () => {
  if (openRow) {
    const [link] = [...openRow.querySelectorAll(".trail a")].slice(-1);
    openPath(tidy(link.getAttribute("href").slice(1)));
  } else if (here() !== "") location.hash = "";
};

const onKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, .chart, .scroll, pre")) return;
  if (event.key === "/") {
    event.preventDefault();
    setMenu(true);
    document.getElementById("query")?.focus();
  } else if (event.key === "Escape") up();
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const [paths, index] = siblings();
    const next = paths[index + (event.key === "ArrowRight" ? 1 : -1)];
    if (index >= 0 && next !== undefined) location.hash = next;
  }
};

const startViews = () => {
  for (const view of document.querySelectorAll(".view[data-view]")) {
    const path = tidy(view.dataset.view);
    if (!views.has(path)) views.set(path, view);
  }
  if (views.size === 0) return false;
  for (const template of document.querySelectorAll("template.rowview")) {
    const path = tidy(template.dataset.view);
    if (!rows.has(path)) rows.set(path, template);
  }
  root.classList.add("js");
  levelTitles(document);
  document.querySelector(".keys").hidden = false;
  menuButton.hidden = false;
  menuButton.addEventListener("click", () => setMenu(!root.classList.contains("menu-open")));
  document.addEventListener("click", (event) => {
    const cell = event.target.closest?.("[data-row]");
    if (!cell || event.target.closest("a, button, summary") || String(getSelection())) return;
    openPath(tidy(cell.dataset.row));
  });
  document.addEventListener("keydown", onKey);
  addEventListener("scroll", () => scrolled.set(current, scrollY), { passive: true });
  addEventListener("hashchange", () => go());
  startFolds();
  startCards();
  go(false);
  return true;
};

// Search over cases, operations and marks: every word has to occur.
const MOST_FOUND = 12;

const entries = () =>
  [...rows.values()].map((template) => {
    const { place, label, operations, marks, status } = template.dataset;
    const split = (text) => (text ? text.split("|") : []);
    const extra = [...split(operations), ...split(marks), status === "ok" ? "" : status];
    return {
      link: tidy(template.dataset.view),
      place,
      suite: template.dataset.in,
      extra: extra.filter(Boolean),
      text: [place, template.dataset.in, label, ...extra].join(" ").toLowerCase(),
    };
  });

const startSearch = () => {
  const form = document.getElementById("search");
  if (!form || rows.size === 0) return;
  form.hidden = false;
  const query = document.getElementById("query");
  const list = document.getElementById("found");
  const nothing = document.getElementById("nothing");
  let known = null;

  const line = (entry, words) => {
    const link = document.createElement("a");
    link.href = `#${entry.link}`;
    const why = entry.extra.filter((text) => words.some((word) => text.toLowerCase().includes(word)));
    link.textContent = entry.place;
    const small = document.createElement("small");
    small.textContent = [entry.suite, ...why].join(" · ");
    link.append(small);
    const item = document.createElement("li");
    item.append(link);
    return item;
  };

  const search = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    known ??= entries();
    const found = words.length
      ? known.filter((entry) => words.every((word) => entry.text.includes(word)))
      : [];
    list.replaceChildren(...found.slice(0, MOST_FOUND).map((entry) => line(entry, words)));
    list.hidden = found.length === 0;
    const more = found.length - MOST_FOUND;
    nothing.textContent = more > 0 ? `${more} more rows` : "";
    if (words.length && !found.length) nothing.textContent = "No row has all these words.";
  };

  const clear = () => {
    query.value = "";
    search();
  };

  query.addEventListener("input", search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  form.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const place = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown") links[Math.min(place + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (links[place - 1] || query).focus();
    else if (event.key === "Escape") {
      clear();
      query.blur();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.addEventListener("click", () => setTimeout(clear, 0));
};

// Files inside the page are packed; who has scripts gets them unpacked.
const canUnpack = typeof DecompressionStream !== "undefined";

const unpackedText = (text) => {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(content);
};

const unpacked = (link) => unpackedText(link.href.split(",")[1]);

const handOut = (blob, name) => {
  const url = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
};

const startFiles = () => {
  for (const link of document.querySelectorAll(".downloads a")) {
    if (!canUnpack) break;
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      handOut(await unpacked(link).blob(), link.dataset.name);
    });
  }
};

// A row's own part of the summary inside the page.
const startRaw = (view, template) => {
  const run = document.getElementById(template.dataset.run);
  const link = run.querySelector('.downloads a[data-name="summary.json"]');
  const text = view.querySelector(".rawtext");
  const [suite, name, size] = JSON.parse(template.dataset.key);
  const read = async () => {
    const { rows: all } = await unpacked(link).json();
    const mine = all.find(
      (row) => row.suite === suite && row.case === name && row.world_size === size,
    );
    return JSON.stringify(mine, null, 1);
  };
  const buttons = [view.querySelector(".raw"), view.querySelector(".rawfile")];
  buttons.forEach((button) => {
    button.hidden = !canUnpack || !link;
  });
  buttons[0].addEventListener("click", async () => {
    text.hidden = !text.hidden;
    buttons[0].textContent = text.hidden ? "Show" : "Hide";
    if (!text.textContent) text.textContent = await read();
  });
  buttons[1].addEventListener("click", async () => {
    const file = `${suite}.${name}.n${size}.json`.replace(/[^\w.-]+/g, "_");
    handOut(new Blob([await read()], { type: "application/json" }), file);
  });
};

// What is taken along: the command line, and the overview as text or as a picture.
const SCALE = 2;

const told = (button, text) => {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => {
    button.textContent = before;
  }, 2000);
};

const asPicture = async (view) => {
  const { width, height } = view.getBoundingClientRect();
  const copy = view.cloneNode(true);
  copy.querySelectorAll(".take, .skip").forEach((one) => one.remove());
  const dark = getComputedStyle(root).getPropertyValue("--paper").trim() !== "#ffffff";
  const style = document.createElement("style");
  style.textContent = document.querySelector("style").textContent;
  const body = document.createElement("div");
  body.className = "pictured";
  body.append(style, copy);
  const inside = new XMLSerializer().serializeToString(body);
  const size = `width="${SCALE * (width + 48)}" height="${SCALE * (height + 48)}"`;
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} class="report js"` +
    ` viewBox="0 0 ${width + 48} ${height + 48}" data-theme="${dark ? "dark" : "light"}">` +
    `<foreignObject width="100%" height="100%">${inside}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = SCALE * (width + 48);
  canvas.height = SCALE * (height + 48);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((go) => canvas.toBlob(go, "image/png"));
};

const copyPicture = async (button) => {
  let blob = null;
  try {
    blob = await asPicture(viewOf(button));
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    told(button, "Copied");
  } catch {
    if (blob) handOut(blob, "overview.png");
    told(button, blob ? "Saved" : "Not possible here");
  }
};

const copyText = async (button) => {
  const source = document.getElementById(button.dataset.text);
  try {
    await navigator.clipboard.writeText(source.textContent);
    told(button, "Copied");
  } catch {
    handOut(new Blob([source.textContent], { type: "text/markdown" }), "overview.md");
    told(button, "Saved");
  }
};

const startCopy = () => {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
    });
  }
  for (const take of document.querySelectorAll(".take")) take.hidden = false;
  for (const button of document.querySelectorAll(".takepicture")) {
    button.addEventListener("click", () => copyPicture(button));
  }
  for (const button of document.querySelectorAll(".taketext")) {
    button.addEventListener("click", () => copyText(button));
  }
  if (location.search === "?picture") root.classList.add("picture");
};

// Paper is narrower than a screen, and charts do not notice. It shows overview and suites: of a
// section its first figure, two of them side by side, and of one that is closed its conclusion.
const PAPER_PX = 680;
const HALF_PX = 325;
const HALF_HEIGHT_PX = 250;
const NOT_ON_PAPER = ".fold.closed, .suiteview > .tables:not(.fold) figure ~ figure";

const paperSize = (chart) =>
  chart.closest(".half")
    ? { width: HALF_PX, height: HALF_HEIGHT_PX, autosize: false }
    : { width: PAPER_PX, autosize: false };

const startPrint = () => {
  addEventListener("beforeprint", () => {
    if (!hasPlotly()) return;
    const printed = root.classList.contains("row-open") ? openRow : document;
    for (const chart of printed.querySelectorAll(".chart")) {
      if (chart.closest(NOT_ON_PAPER)) continue;
      if (isDrawn(chart)) Plotly.relayout(chart, paperSize(chart));
      else draw(chart, paperSize(chart));
    }
  });
  addEventListener("afterprint", () => {
    for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
      Plotly.relayout(chart, { width: null, height: null, autosize: true });
    }
  });
};

// Not at once: who clicks right away is not to wait for it.
const SOON_MS = 600;

const start = () => {
  startTheme();
  startFiles();
  startCopy();
  startTerms();
  startCharts();
  startPrint();
  const withViews = startViews();
  startSearch();
  if (!withViews) {
    watchCharts(document);
    enqueue([]);
  }
  performance.mark("scalebench-interactive");
  setTimeout(awaitPlotly, SOON_MS);
};

start();
})();
"use strict";
// plotly's script is packed inside the page, and runs when the first figure is to be drawn.
(() => {
  let ready = null;

  const unpack = async () => {
    const place = document.getElementById("plotly");
    const packed = Uint8Array.from(atob(place.textContent), (c) => c.charCodeAt(0));
    const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(content).text();
    document.head.append(script);
    place.remove();
  };

  window.scalebenchPlotly = () => {
    ready ??= unpack().catch(() => {
      document.documentElement.classList.add("no-figures");
    });
    return ready;
  };
})();
}, showWhy);
