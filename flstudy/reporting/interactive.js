"use strict";
// Plotly draws the figures in the page's colours, light or dark; a method that the legend of one figure hides is hidden
// in all of them and in the table of trials.
const plots = [...document.querySelectorAll(".chart")];
const hidden = new Set();

function template() {
  const [color, grid, bgcolor] = ["--ink", "--grid", "--raised"].map(name => getComputedStyle(document.body).getPropertyValue(name));
  const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true };
  const clear = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
  const hoverlabel = { bgcolor, bordercolor: grid, font: { color } };
  return { layout: { ...clear, font: { color }, xaxis: axis, yaxis: axis, hoverlabel, margin: { t: 60, r: 20, b: 50, l: 60 } } };
}

plots.forEach(plot => {
  const { data, layout } = JSON.parse(plot.nextElementSibling.textContent);
  Plotly.newPlot(plot, data, { ...layout, template: template() }, { displaylogo: false, responsive: true });
  plot.on("plotly_restyle", ([change]) => "visible" in change && follow(plot));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(plot => Plotly.relayout(plot, { template: template() })));

function follow(plot) {
  const wanted = trace => (hidden.has(trace.legendgroup) ? "legendonly" : true);
  const methods = plot => plot.data.filter(trace => trace.legendgroup);
  methods(plot).forEach(trace => hidden[trace.visible === "legendonly" ? "add" : "delete"](trace.legendgroup));
  for (const other of plots) {
    const apart = methods(other).filter(trace => (trace.visible ?? true) !== wanted(trace));
    if (apart.length) Plotly.restyle(other, { visible: apart.map(wanted) }, apart.map(trace => other.data.indexOf(trace)));
  }
  document.querySelectorAll("#trials-table tbody tr").forEach(row => { row.hidden = hidden.has(row.cells[1].textContent); });
}
