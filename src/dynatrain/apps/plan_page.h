// The page of `dynatrain plan --report`: everything before and after its data, which is one JSON
// object.
#ifndef DYNATRAIN_APPS_PLAN_PAGE_H_
#define DYNATRAIN_APPS_PLAN_PAGE_H_

#include <string_view>

namespace dynatrain::apps {

inline constexpr std::string_view kPlanPageHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Traffic of a change of layout</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #1d2430; background: #fff; }
h1 { font-size: 20px; margin: 0 0 4px; }
p { margin: 2px 0 12px; color: #566; }
table { border-collapse: collapse; margin: 0 0 16px; }
td { padding: 2px 14px 2px 0; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
#map { cursor: crosshair; }
#tip { position: fixed; display: none; background: #1d2430; color: #fff; padding: 6px 9px;
  border-radius: 4px; pointer-events: none; white-space: pre; font-size: 13px; }
.key { display: inline-block; width: 140px; height: 10px; vertical-align: middle; margin: 0 8px; }
</style></head><body>
<h1 id="title"></h1><p id="sub"></p><table id="facts"></table>
<p>Each row is a sending rank, each column a receiving one; ranks of a node lie together. Bars beside the
map are totals out (right) and in (below). Inside a node <span class="key" style="background:
linear-gradient(90deg,#e8f1fb,#0b4a8f)"></span> between nodes <span class="key" style="background:
linear-gradient(90deg,#fdece0,#a33a00)"></span> (logarithmic)</p>
<canvas id="map"></canvas><div id="tip"></div>
<script type="application/json" id="data">)html";

inline constexpr std::string_view kPlanPageTail = R"html(</script>
<script>
const d = JSON.parse(document.getElementById('data').textContent), s = d.summary, n = d.ranks.length;
const bytes = b => { const u = ['B', 'kB', 'MB', 'GB', 'TB', 'PB']; let i = 0;
  while (b >= 999.95 && i < 5) { b /= 1000; i++; } return (i ? b.toFixed(2) : b) + ' ' + u[i]; };
document.getElementById('title').textContent = s.model + ': ' + s.from + ' \u2192 ' + s.to;
document.getElementById('sub').textContent = n + ' ranks on ' + s.topology + ', roles ' + s.roles;
const facts = [['moved', bytes(s.moved_bytes)], ['between nodes', bytes(s.cross_node_bytes)],
  ['kept', bytes(s.kept_bytes)], ['fullest rank in / out', bytes(s.max_rank_in_bytes) + ' / ' +
  bytes(s.max_rank_out_bytes)], ['fullest node in / out', bytes(s.max_node_in_bytes) + ' / ' +
  bytes(s.max_node_out_bytes)], ['fullest link', s.fullest_link_seconds.toFixed(4) + ' s'],
  ['no plan is faster than', s.bound_seconds.toFixed(4) + ' s']];
if (s.predicted_seconds !== null) facts.push(['predicted', s.predicted_seconds.toFixed(4) + ' s'],
  ['extra memory of a rank, at most', bytes(s.peak_extra_bytes)]);
for (const [k, v] of facts) { const r = document.getElementById('facts').insertRow();
  r.insertCell().textContent = k; const c = r.insertCell(); c.textContent = v; c.className = 'n'; }
const cell = Math.max(4, Math.min(28, Math.floor(900 / n))), left = 46, top = 26, bar = 90;
const at = [], cells = new Map(), out = Array(n).fill(0), inn = Array(n).fill(0);
let x = 0, most = 1;
for (let i = 0; i < n; i++) { if (i && d.nodes[i] !== d.nodes[i - 1]) x += 3; at.push(x); x += cell; }
for (const [i, j, b] of d.cells) { cells.set(i * n + j, b); out[i] += b; inn[j] += b; most = Math.max(most, b); }
const c = document.getElementById('map'), g = c.getContext('2d'), ratio = window.devicePixelRatio || 1;
const w = left + x + bar + 12, h = top + x + bar + 12;
c.width = w * ratio; c.height = h * ratio; c.style.width = w + 'px'; c.style.height = h + 'px';
g.scale(ratio, ratio); g.font = '11px system-ui, sans-serif';
const mix = (a, b, t) => 'rgb(' + a.map((v, i) => Math.round(v + (b[i] - v) * t)).join() + ')';
const color = (i, j, b) => { const t = Math.max(0, 1 + Math.log10(b / most) / 5);
  return d.nodes[i] === d.nodes[j] ? mix([232, 241, 251], [11, 74, 143], t)
                                   : mix([253, 236, 224], [163, 58, 0], t); };
g.fillStyle = '#f4f5f7';
for (let i = 0; i < n; i++) for (let j = 0; j < n; j++)
  g.fillRect(left + at[j], top + at[i], cell - (cell > 5 ? 1 : 0.5), cell - (cell > 5 ? 1 : 0.5));
for (const [i, j, b] of d.cells) { g.fillStyle = color(i, j, b);
  g.fillRect(left + at[j], top + at[i], cell - (cell > 5 ? 1 : 0.5), cell - (cell > 5 ? 1 : 0.5)); }
const fullest = Math.max(1, ...out, ...inn);
for (let i = 0; i < n; i++) { g.fillStyle = '#7a8699';
  g.fillRect(left + x + 6, top + at[i], out[i] / fullest * bar, cell - 1);
  g.fillRect(left + at[i], top + x + 6, cell - 1, inn[i] / fullest * bar);
  if (i === 0 || d.nodes[i] !== d.nodes[i - 1] || cell >= 14) { g.fillStyle = '#1d2430';
    const label = cell >= 14 ? String(d.ranks[i]) : 'n' + d.nodes[i];
    g.textAlign = 'right'; g.fillText(label, left - 6, top + at[i] + Math.max(9, cell / 2 + 4));
    g.textAlign = 'left'; g.fillText(label, left + at[i], top - 8); } }
const tip = document.getElementById('tip');
const find = p => { for (let i = 0; i < n; i++) if (p >= at[i] && p < at[i] + cell) return i; return -1; };
c.addEventListener('mousemove', e => { const r = c.getBoundingClientRect();
  const j = find(e.clientX - r.left - left), i = find(e.clientY - r.top - top);
  const who = k => 'rank ' + d.ranks[k] + ' on node ' + d.nodes[k] + '\n  held ' + d.old[k] + '; takes ' +
    d.new[k] + '\n  out ' + bytes(out[k]) + ', in ' + bytes(inn[k]) + ', kept ' + bytes(d.kept[k]);
  let text = ''; if (i >= 0 && j >= 0) text = bytes(cells.get(i * n + j) || 0) + '\nfrom ' + who(i) + '\nto ' + who(j);
  else if (i >= 0) text = who(i); else if (j >= 0) text = who(j);
  tip.style.display = text ? 'block' : 'none'; tip.textContent = text;
  tip.style.left = Math.min(e.clientX + 14, innerWidth - 360) + 'px'; tip.style.top = e.clientY + 14 + 'px'; });
c.addEventListener('mouseleave', () => { tip.style.display = 'none'; });
</script></body></html>
)html";

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PLAN_PAGE_H_
