(async () => {
  const read = (id) => document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(read("plotly").trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  const plots = JSON.parse(read("plots"));
  const hidden = new Map(); // figure element -> labels switched off
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const draw = (element) => {
    const { data, layout } = plots[element.dataset.plot];
    const off = hidden.get(element.closest(".figure")) || new Set();
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule"), tickcolor: colour("--rule"), zerolinecolor: colour("--quiet") };
    const themed = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--quiet") },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
    const shown = data.map((trace) => ({ ...trace, visible: !off.has(trace.name) }));
    Plotly.react(element, shown, themed, { displayModeBar: false, responsive: true });
    element.dataset.drawn = "yes";
  };

  const unfold = () => {
    const details = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
    if (details) { details.open = true; details.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  const all = [...document.querySelectorAll(".plot")];
  const redraw = () => all.filter((e) => e.dataset.drawn).forEach(draw);
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "300px" });
  all.forEach((e) => seen.observe(e));
  dark.addEventListener("change", redraw);

  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const figure = button.closest(".figure");
    if (!hidden.has(figure)) hidden.set(figure, new Set());
    const off = hidden.get(figure), arm = button.dataset.arm;
    button.setAttribute("aria-pressed", String(off.has(arm)));
    if (!off.delete(arm)) off.add(arm);
    figure.querySelectorAll(".plot[data-drawn]").forEach(draw);
  }));

  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
    document.documentElement.classList.add("printed"); // colours are read when a figure is drawn, before the print style
    all.forEach(draw);
  });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("printed"); redraw(); });
})();
