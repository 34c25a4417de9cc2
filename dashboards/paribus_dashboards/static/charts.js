// Charts: <div class="chart" data-src="/data/...json"> is drawn when it comes into view. plotly is loaded with the first.
(() => {
  const plotlyAt = document.currentScript.dataset.plotly;
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // element -> its figure as it came, and what is switched off
  let plotly = null;

  const loaded = () => {
    if (window.Plotly) return Promise.resolve();
    if (window.PARIBUS_PLOTLY) return window.PARIBUS_PLOTLY();
    plotly ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = plotlyAt;
      script.onload = done;
      script.onerror = () => { plotly = null; failed(new Error("plotly could not be loaded")); };
      document.head.append(script);
    });
    return plotly;
  };

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // "var(--name)" anywhere in a figure is the colour of the page
  const dyed = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? colour(value.slice(4, -1)) : value;
    if (Array.isArray(value)) return value.some((v) => typeof v === "object" || typeof v === "string") ? value.map(dyed) : value;
    if (value && typeof value === "object" && !ArrayBuffer.isView(value)) {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, dyed(v)]));
    }
    return value;
  };

  const themed = (layout) => {
    const own = { gridcolor: colour("--rule"), linecolor: colour("--rule"), tickcolor: colour("--rule"), zerolinecolor: colour("--quiet") };
    const axes = Object.keys(layout).filter((k) => /^[xy]axis\d*$/.test(k));
    return {
      ...layout,
      ...Object.fromEntries(axes.map((k) => [k, { ...own, ...layout[k] }])),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--quiet") },
      uirevision: "kept",
    };
  };

  const show = (element) => {
    const { figure, off } = drawn.get(element);
    const data = dyed(figure.data).map((t) => ({ ...t, visible: off.has(t.name) ? false : t.visible ?? true }));
    const layout = themed(dyed(figure.layout));
    const range = zoomOf(element);
    if (range) layout.xaxis = { ...layout.xaxis, range, autorange: false };
    Plotly.react(element, data, layout, { displayModeBar: false, responsive: true });
    if (element.dataset.legend) legend(element, figure, off);
    if (!element.dataset.drawn) {
      element.dataset.drawn = "yes";
      if (element.dataset.zoom) element.on("plotly_relayout", (change) => zoomed(element, change));
    }
  };

  // ---- legends: one button an arm, pressed while it is shown; in a .figure one legend for all its charts ----

  const swatch = (line) => {
    const made = document.createElement("span");
    made.className = `swatch ${line.dash || "solid"}`;
    made.style.setProperty("--swatch", line.color);
    return made;
  };

  const legend = (element, figure, off) => {
    const names = new Map();
    for (const t of figure.data) if (t.name && t.line?.color && t.hoverinfo !== "skip") names.set(t.name, t.line);
    let bar = element.previousElementSibling;
    if (!bar?.classList.contains("legend")) {
      bar = document.createElement("p");
      bar.className = "legend";
      element.before(bar);
    }
    const known = [...names.keys()].join("\n");
    if (bar.dataset.names === known) return;
    bar.dataset.names = known;
    bar.replaceChildren(...[...names].map(([name, line]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.arm = name;
      button.setAttribute("aria-pressed", String(!off.has(name)));
      button.append(swatch(line), new DOMParser().parseFromString(name, "text/html").body.textContent);
      return button;
    }));
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button[data-arm]");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    const charts = button.closest(".figure")?.querySelectorAll(".chart") || [button.closest(".legend").nextElementSibling];
    for (const element of charts) {
      const state = drawn.get(element) || { off: new Set() };
      drawn.set(element, state);
      shown ? state.off.delete(button.dataset.arm) : state.off.add(button.dataset.arm);
      if (element.dataset.drawn) show(element);
    }
  });

  // ---- zoom: the range is in the address of the page, and finer points are asked for ----

  const zoomOf = (element) => {
    if (!element.dataset.zoom) return null;
    const query = new URLSearchParams(pageQuery());
    const [first, last] = [query.get("first"), query.get("last")];
    return first !== null && last !== null && first !== "" && last !== "" ? [Number(first), Number(last)] : null;
  };

  const pageQuery = () => (window.PARIBUS_DATA ? location.hash.split("?")[1] || "" : location.search);

  let waiting = 0;
  const zoomed = (element, change) => {
    const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
    const to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
    if (from === undefined && !change["xaxis.autorange"]) return;
    const query = new URLSearchParams(pageQuery());
    if (from === undefined) { query.delete("first"); query.delete("last"); }
    else {
      const grain = Math.min(1, 10 ** Math.floor(Math.log10((to - from) / 100))); // hours have decimals, steps need none
      const even = (value, round) => Number((round(value / grain) * grain).toPrecision(6));
      query.set("first", Math.max(0, even(from, Math.floor)));
      query.set("last", even(to, Math.ceil));
    }
    const text = query.toString();
    if (window.PARIBUS_DATA) history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
    else history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    clearTimeout(waiting);
    const mine = (waiting = setTimeout(async () => {
      const others = [...document.querySelectorAll(".chart[data-zoom][data-drawn]")].filter((e) => e !== element);
      for (const e of others) e.dataset.stale = "yes";
      await fetchAndShow(element); // the one that is looked at comes first, then one after the other what is in view
      for (const e of others) if (waiting === mine && e.dataset.stale && e.dataset.inView) await fetchAndShow(e);
    }, 60));
  };

  const source = (element) => {
    const at = element.dataset.src;
    const range = zoomOf(element);
    if (!range || window.PARIBUS_DATA) return at;
    return `${at}${at.includes("?") ? "&" : "?"}first=${range[0]}&last=${range[1]}`;
  };

  // ---- fetching ----

  // why there is no figure: the sentence of the error's page, or all that was answered
  const said = async (answer) => {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return (page.querySelector("main p") || page.body).textContent.trim().slice(0, 300) || `the answer was ${answer.status}`;
  };

  const note = (element, text) => {
    let shown = element.nextElementSibling;
    if (!shown?.classList.contains("not-drawn")) {
      if (!text) return;
      shown = document.createElement("p");
      shown.className = "not-drawn care";
      element.after(shown);
    }
    text ? (shown.textContent = text) : shown.remove();
  };

  const read = async (at, tag) => {
    if (window.PARIBUS_DATA) return { figure: await window.PARIBUS_DATA(at) };
    const answer = await fetch(at, { headers: tag ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
    if (answer.status === 304) return {};
    if (!answer.ok) throw Object.assign(new Error(`${at}: ${answer.status}`), { said: await said(answer) });
    return { figure: await answer.json(), tag: answer.headers.get("ETag") };
  };

  const fetchAndShow = async (element) => {
    const at = source(element);
    delete element.dataset.stale;
    const state = drawn.get(element) || { off: new Set() };
    drawn.set(element, state);
    const asked = (state.asked = (state.asked || 0) + 1);
    try {
      const found = await read(at, state.at === at ? state.tag : null);
      await loaded();
      if (asked !== state.asked || !element.isConnected) return; // a newer question is under way
      if (found.figure) Object.assign(state, { figure: found.figure, tag: found.tag, at });
      if (found.figure || !element.dataset.drawn) show(element);
      element.classList.remove("failed");
      note(element, "");
    } catch (error) {
      if (asked !== state.asked) return;
      element.classList.add("failed");
      // live.js tells when the server is away: a chart that was drawn says nothing of it
      note(element, error.said ? `Not drawn: ${error.said}` : element.dataset.drawn ? "" : "The chart could not be loaded.");
      console.debug(error);
    }
  };

  // ---- when ----

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const element = entry.target;
      element.dataset.inView = entry.isIntersecting ? "yes" : "";
      if (entry.isIntersecting && (!element.dataset.drawn || element.dataset.stale)) fetchAndShow(element);
    }
  }, { rootMargin: "300px" });

  const adopt = (where) => {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    where.querySelectorAll(".chart[data-src]").forEach((e) => seen.observe(e));
  };

  const redraw = () => [...drawn.keys()].filter((e) => e.dataset.drawn).forEach(show);
  dark.addEventListener("change", redraw);
  addEventListener("popstate", () => [...drawn.keys()].filter((e) => e.dataset.zoom).forEach(fetchAndShow));
  addEventListener("beforeprint", () => { root.classList.add("printed"); redraw(); });
  addEventListener("afterprint", () => { root.classList.remove("printed"); redraw(); });
  document.addEventListener("paribus:swapped", (event) => adopt(event.target));

  setInterval(() => {
    if (document.hidden || window.PARIBUS_DATA) return;
    const now = Date.now();
    for (const [element, state] of drawn) {
      const every = Number(element.dataset.live) * 1000;
      if (!every || !element.dataset.inView || now - (state.last || 0) < every) continue;
      state.last = now;
      fetchAndShow(element);
    }
  }, 1000);

  window.paribusCharts = { adopt };
  adopt(document);
})();
