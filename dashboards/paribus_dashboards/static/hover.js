// Pointing at a chart of arms lists their values at that step, the largest first, and makes the nearest line stand out.
// The list is HTML: plotly's own one has the order of the traces. A trace is listed if its "meta" has a text.
window.paribusHover = (() => {
  const MOST = 12;
  const plain = new Map();

  // labels are escaped for plotly
  const label = (name) => {
    if (!plain.has(name)) plain.set(name, new DOMParser().parseFromString(name, "text/html").body.textContent);
    return plain.get(name);
  };

  const traces = (element) => [...element.querySelectorAll(".scatterlayer .trace")];

  // fades all lines but those of one arm; no arm: none
  const highlight = (element, arm) => {
    for (const g of traces(element)) {
      const name = g.__data__?.[0]?.trace?.name;
      g.classList.toggle("faded", Boolean(arm) && name !== undefined && label(name) !== arm);
    }
  };

  const nearest = (xs, x) => {
    let [low, high] = [0, xs.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      xs[middle] < x ? (low = middle) : (high = middle);
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  // values at x: those of lines that reach it
  const values = (element, x) => {
    const found = [];
    for (const t of element._fullData) {
      if (t.visible !== true || !t.meta || !t.x.length) continue;
      const i = nearest(t.x, x);
      const gap = Math.max(Math.abs((t.x[i + 1] ?? t.x[i]) - t.x[i]), Math.abs(t.x[i] - (t.x[i - 1] ?? t.x[i])));
      if (t.y[i] !== null && Number.isFinite(t.y[i]) && Math.abs(t.x[i] - x) <= gap) found.push({ name: label(t.name), y: t.y[i], note: t.meta, line: t.line });
    }
    return found.sort((a, b) => b.y - a.y);
  };

  const number = (y) => (y !== 0 && Math.abs(y) < 1e-3 ? y.toExponential(2) : String(Number(y.toPrecision(4))));

  const row = (entry, near) => {
    const made = document.createElement("div");
    made.classList.toggle("near", entry === near);
    const swatch = document.createElement("span");
    swatch.className = `swatch ${entry.line.dash || "solid"}`;
    swatch.style.setProperty("--swatch", entry.line.color);
    const [name, value, note] = [entry.name, number(entry.y), entry.note].map((text, i) => {
      const part = document.createElement(i === 1 ? "b" : "span");
      part.textContent = text;
      if (i === 2) part.className = "quiet";
      return part;
    });
    made.append(swatch, name, value, note);
    return made;
  };

  const show = (element, event, title) => {
    const x = event.points[0].x;
    const { xaxis, yaxis, margin } = element._fullLayout;
    const found = values(element, x);
    if (!found.length) return hide(element);
    const within = element.getBoundingClientRect();
    const y = event.event ? event.event.clientY - within.top - yaxis._offset : NaN;
    const near = Number.isFinite(y) ? found.reduce((a, b) => (Math.abs(yaxis.d2p(b.y) - y) < Math.abs(yaxis.d2p(a.y) - y) ? b : a)) : null;
    highlight(element, near?.name);
    let tip = element.querySelector(".tip");
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "tip";
      tip.setAttribute("aria-hidden", "true"); // the description of the chart has its numbers
      element.append(tip);
    }
    const head = document.createElement("p");
    head.textContent = `${title} ${number(x)}`;
    const more = found.length - MOST;
    const listed = found.filter((e, i) => i < MOST || e === near);
    tip.replaceChildren(head, ...listed.map((e) => row(e, near)));
    if (more > 0) tip.append(Object.assign(document.createElement("p"), { textContent: `and ${found.length - listed.length} more` }));
    const at = xaxis._offset + xaxis.d2p(x);
    tip.style.top = `${margin.t}px`;
    tip.classList.toggle("before", at > within.width / 2);
    tip.style.left = at > within.width / 2 ? "" : `${Math.round(at + 14)}px`;
    tip.style.right = at > within.width / 2 ? `${Math.round(within.width - at + 14)}px` : "";
    tip.hidden = false;
    element.classList.add("pointed");
    element.style.setProperty("--pointed", `${Math.round(at)}px`);
    element.style.setProperty("--pointed-from", `${margin.t}px`);
    element.style.setProperty("--pointed-to", `${margin.b}px`);
  };

  const hide = (element) => {
    const tip = element.querySelector(".tip");
    if (tip) tip.hidden = true;
    element.classList.remove("pointed");
    highlight(element, null);
  };

  return { label, highlight, show, hide };
})();
