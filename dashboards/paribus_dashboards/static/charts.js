// Charts: <div class="chart" data-src="/data/...json"> is drawn when it scrolls into view. The first chart loads plotly.
(() => {
  const plotlyAt = document.currentScript.dataset.plotly;
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // element -> its figure as served, and the arms that are switched off
  let plotly = null;

  const loaded = () => {
    if (window.Plotly) return Promise.resolve();
    if (window.PARIBUS_PLOTLY) return window.PARIBUS_PLOTLY();
    plotly ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = plotlyAt;
      script.onload = done;
      script.onerror = () => { plotly = null; failed(new Error("could not load plotly")); };
      document.head.append(script);
    });
    return plotly;
  };

  const hover = window.paribusHover;
  const label = hover.label;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // replaces "var(--name)" anywhere in a figure by the colour of the page
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
    const { figure, off, peek } = drawn.get(element);
    const hidden = (name) => name !== undefined && off.has(label(name)) && label(name) !== peek;
    const data = dyed(figure.data).map((t) => ({ ...t, visible: hidden(t.name) ? false : t.visible ?? true }));
    const layout = themed(dyed(figure.layout));
    const range = zoomOf(element);
    if (root.classList.contains("printed")) layout.width = element.clientWidth; // at once: plotly resizes with a delay
    if (range?.every(Number.isFinite)) layout.xaxis = { ...layout.xaxis, range, autorange: false };
    Plotly.react(element, data, layout, { displayModeBar: false, responsive: true });
    if (element.dataset.legend) legend(element, figure, off);
    if (!element.dataset.drawn) {
      element.dataset.drawn = "yes";
      if (element.dataset.zoom) element.on("plotly_relayout", (change) => zoomed(element, change));
      if (element.closest("[data-together]")) pointTogether(element);
      element.on("plotly_hover", (event) => { const { figure } = drawn.get(element) || {}; if (figure?.tip) hover.show(element, event, figure.tip); });
      element.on("plotly_unhover", () => hover.hide(element));
    }
    const about = element.parentElement.querySelector("[data-note]");
    if (about && about.textContent !== (figure.note || "")) about.textContent = figure.note || "";
  };

  // ---- pointing at a step of one chart shows the place of this step in all charts of [data-together] ----

  const pointTogether = (element) => {
    const others = () => [...element.closest("[data-together]").querySelectorAll(".chart[data-drawn]")].filter((e) => e !== element);
    element.on("plotly_hover", (event) => others().forEach((e) => {
      const { xaxis, margin } = e._fullLayout;
      const at = xaxis.d2p(event.points[0].x);
      e.classList.toggle("pointed", at >= 0 && at <= xaxis._length);
      e.style.setProperty("--pointed", `${Math.round(xaxis._offset + at)}px`);
      e.style.setProperty("--pointed-from", `${margin.t}px`);
      e.style.setProperty("--pointed-to", `${margin.b}px`);
    }));
    element.on("plotly_unhover", () => others().forEach((e) => e.classList.remove("pointed")));
  };

  // ---- legends: one button per arm, pressed while the arm is shown; a .figure has one legend for all its charts ----

  const swatch = (line) => {
    const made = document.createElement("span");
    made.className = `swatch ${line.dash || "solid"}`;
    made.style.setProperty("--swatch", line.color);
    return made;
  };

  const legend = (element, figure, off) => {
    const names = new Map();
    for (const t of figure.data) if (t.name && t.line?.color && t.hoverinfo !== "skip") names.set(label(t.name), t.line);
    let bar = element.previousElementSibling;
    if (!bar?.classList.contains("legend")) {
      bar = document.createElement("div");
      bar.className = "legend";
      element.before(bar);
    }
    const rest = new Set(figure.rest || []);
    const known = [...names.keys()].map((name) => `${rest.has(name)}${name}`).join("\n");
    if (bar.dataset.names === known) {
      for (const button of bar.querySelectorAll("button")) button.setAttribute("aria-pressed", String(!off.has(button.dataset.arm)));
      return;
    }
    bar.dataset.names = known;
    const button = ([name, line]) => {
      const made = document.createElement("button");
      made.type = "button";
      made.dataset.arm = name;
      made.setAttribute("aria-pressed", String(!off.has(name)));
      made.append(swatch(line), name);
      return made;
    };
    const open = bar.querySelector("details")?.open;
    bar.replaceChildren(...[...names].filter(([name]) => !rest.has(name)).map(button));
    if (!rest.size) return;
    const more = document.createElement("details");
    more.open = Boolean(open);
    const summary = document.createElement("summary");
    summary.textContent = `${rest.size} more ${rest.size === 1 ? "arm" : "arms"}`;
    more.append(summary, ...[...names].filter(([name]) => rest.has(name)).map(button));
    bar.append(more);
  };

  // the charts of a legend; of any other element with data-arm, those that let arms be chosen
  const chartsOf = (element) => {
    const bar = element.closest(".legend");
    if (!bar) return [...document.querySelectorAll(".chart[data-legend]")].filter((e) => e.offsetParent);
    return [...(bar.closest(".figure")?.querySelectorAll(".chart") || [bar.nextElementSibling])];
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button[data-arm]");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const element of chartsOf(button)) {
      const state = drawn.get(element) || { off: new Set() };
      drawn.set(element, state);
      state.chosen = true; // from now on the reader decides, not the newest ranking
      shown ? state.off.delete(button.dataset.arm) : state.off.add(button.dataset.arm);
      state.peek = null; // a click counts at once, although the pointer is still there
      if (!element.dataset.drawn) continue;
      show(element);
      hover.highlight(element, shown ? button.dataset.arm : null);
    }
  });

  // pointing at an arm in a legend or a table makes its lines stand out, also if they are switched off
  let pointedArm = null;
  const point = (target) => {
    const found = target?.closest?.("[data-arm]") || null;
    if (found === pointedArm) return;
    const charts = new Set([...(pointedArm ? chartsOf(pointedArm) : []), ...(found ? chartsOf(found) : [])]);
    pointedArm = found;
    for (const element of charts) {
      const state = drawn.get(element);
      if (!state?.figure || !element.dataset.drawn) continue;
      const arm = found && chartsOf(found).includes(element) ? found.dataset.arm : null;
      const has = arm && state.figure.data.some((t) => t.name !== undefined && label(t.name) === arm);
      const before = state.peek;
      state.peek = has ? arm : null;
      if ((before && state.off.has(before)) || (has && state.off.has(arm))) show(element);
      hover.highlight(element, state.peek);
    }
  };
  document.addEventListener("mouseover", (event) => point(event.target));
  document.addEventListener("focusin", (event) => point(event.target));
  document.addEventListener("focusout", () => point(null));

  // ---- zoom: the range is in the page's address, and a zoomed chart requests finer points ----

  const zoomOf = (element) => {
    if (!element.dataset.zoom) return null;
    const query = new URLSearchParams(pageQuery());
    const [first, last] = [query.get("first"), query.get("last")];
    return first && last ? [Number(first), Number(last)] : null;
  };

  const pageQuery = () => (window.PARIBUS_DATA ? location.hash.split("?")[1] || "" : location.search);

  const zoomed = (element, change) => {
    const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
    const to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
    if (from !== undefined) zoomTo([from, to], element);
    else if (change["xaxis.autorange"]) zoomTo(null, element);
  };

  let waiting = 0;
  const zoomTo = (range, element = null) => {
    const query = new URLSearchParams(pageQuery());
    if (!range) { query.delete("first"); query.delete("last"); }
    else {
      const [from, to] = range;
      const grain = Math.min(1, 10 ** Math.floor(Math.log10((to - from) / 100))); // hours have decimals, steps don't
      const even = (value, round) => Number((round(value / grain) * grain).toPrecision(6));
      query.set("first", Math.max(0, even(from, Math.floor)));
      query.set("last", even(to, Math.ceil));
    }
    const text = query.toString();
    if (window.PARIBUS_DATA) history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
    else history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    fillSpans();
    clearTimeout(waiting);
    const mine = (waiting = setTimeout(async () => {
      const others = [...drawn.keys()].filter((e) => e.dataset.zoom && e !== element);
      for (const e of others) e.dataset.stale = "yes";
      if (element) await fetchAndShow(element); // the zoomed chart first, then the others in view, one by one
      for (const e of others) if (waiting === mine && e.dataset.stale && e.dataset.inView) await fetchAndShow(e);
    }, 60));
  };

  // ---- zoom by keyboard: <form data-span> has the range as numbers ----

  const fillSpans = () => {
    const query = new URLSearchParams(pageQuery());
    for (const form of document.querySelectorAll("form[data-span]")) {
      for (const name of ["first", "last"]) form.elements[name].value = Number.isFinite(Number(query.get(name))) ? query.get(name) ?? "" : "";
      form.querySelector("button").hidden = !query.has("first") && !query.has("last");
      form.querySelector("[role=status]").textContent = "";
    }
  };

  // an empty field stands for the end of the shown range
  const applySpan = (form) => {
    const ends = ["first", "last"].map((name) => form.elements[name].value);
    if (ends.every((e) => e === "")) return zoomTo(null);
    const element = [...drawn.keys()].find((e) => e.dataset.zoom && e.dataset.drawn && e.offsetParent);
    const [from, to] = ends.map((e, i) => (e === "" ? element?.layout.xaxis.range[i] ?? NaN : Number(e)));
    form.querySelector("[role=status]").textContent = from >= to ? "The first value must be smaller than the last." : "";
    if (from < to) zoomTo([from, to]);
    // the other field has a number now: select it, so that typing replaces it
    if (ends.includes("")) setTimeout(() => { if (form.contains(document.activeElement)) document.activeElement.select?.(); });
  };

  document.addEventListener("change", (event) => { if (event.target.closest("form[data-span]")) applySpan(event.target.form); });
  document.addEventListener("submit", (event) => { if (event.target.closest("form[data-span]")) event.preventDefault(); });
  document.addEventListener("click", (event) => {
    const form = event.target.closest("form[data-span] button")?.form;
    if (!form) return;
    form.elements.first.focus(); // the button disappears
    zoomTo(null);
  });

  // ---- <input data-raw-switch> draws the charts that have data-raw as recorded; the address has raw=yes ----

  const asRecorded = () => new URLSearchParams(pageQuery()).get("raw") === "yes";

  const fillRaw = () => {
    for (const box of document.querySelectorAll("input[data-raw-switch]")) box.checked = asRecorded();
    for (const field of document.querySelectorAll("form[data-choose] input[name=raw]")) field.value = field.defaultValue = asRecorded() ? "yes" : "";
  };

  const drawAgain = (charts) => {
    for (const e of charts) e.dataset.stale = "yes";
    for (const e of charts) if (e.dataset.inView) fetchAndShow(e);
  };

  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[data-raw-switch]")) return;
    const query = new URLSearchParams(pageQuery());
    event.target.checked ? query.set("raw", "yes") : query.delete("raw");
    const text = query.toString() ? `?${query}` : "";
    history.pushState(null, "", (window.PARIBUS_DATA ? location.hash.split("?")[0] : location.pathname) + text);
    fillRaw();
    drawAgain([...drawn.keys()].filter((e) => e.dataset.raw));
  });

  const source = (element) => {
    const at = (asRecorded() && element.dataset.raw) || element.dataset.src;
    const range = zoomOf(element);
    if (!range || window.PARIBUS_DATA) return at;
    return `${at}${at.includes("?") ? "&" : "?"}first=${range[0]}&last=${range[1]}`;
  };

  // ---- fetching ----

  // why there is no figure: the sentence of the error page, else the whole answer
  const reason = async (answer) => {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return (page.querySelector("main p") || page.body).textContent.trim().slice(0, 300) || `the server answered with status ${answer.status}`;
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
    if (!answer.ok) throw Object.assign(new Error(`${at}: ${answer.status}`), { reason: await reason(answer) });
    return { figure: await answer.json(), tag: answer.headers.get("ETag") };
  };

  // resolves when the newest request of this chart has ended
  const fetchAndShow = (element) => {
    const state = drawn.get(element) || { off: new Set() };
    drawn.set(element, state);
    return (state.newest = request(element, state));
  };

  const request = async (element, state) => {
    const at = source(element);
    delete element.dataset.stale;
    const asked = (state.asked = (state.asked || 0) + 1);
    try {
      const found = await read(at, state.at === at ? state.tag : null);
      await loaded();
      if (asked !== state.asked) return state.newest;
      if (!element.isConnected) return;
      if (found.figure) Object.assign(state, { figure: found.figure, tag: found.tag, at });
      if (found.figure?.rest && !state.chosen) state.off = new Set(found.figure.rest);
      if (found.figure || !element.dataset.drawn) show(element);
      if (found.figure?.text) element.setAttribute("aria-label", found.figure.text);
      if (state.figure?.again) state.last = Date.now() - Number(element.dataset.live || 0) * 1000 + state.figure.again * 1000; // not all is read yet
      element.classList.remove("failed");
      note(element, "");
    } catch (error) {
      if (asked !== state.asked) return state.newest;
      element.classList.add("failed");
      // live.js reports that the server does not answer, so a drawn chart stays as it is
      note(element, error.reason ? `Not drawn: ${error.reason}` : element.dataset.drawn ? "" : "The chart could not be loaded.");
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
  for (const change of ["popstate", "hashchange", "pageshow"]) addEventListener(change, () => { fillSpans(); fillRaw(); });
  addEventListener("popstate", () => drawAgain([...drawn.keys()].filter((e) => e.dataset.zoom || e.dataset.raw)));
  // the class gives the page the width of the paper
  const resized = () => [...drawn.keys()].filter((e) => e.dataset.drawn && e.offsetParent).forEach((e) => Plotly.Plots.resize(e));
  addEventListener("beforeprint", () => { root.classList.add("printed"); redraw(); });
  addEventListener("afterprint", () => { root.classList.remove("printed"); redraw(); resized(); });
  // charts below the window are not drawn yet, and a page that is being printed cannot wait for them
  addEventListener("keydown", async (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "p") return;
    const left = [...document.querySelectorAll(".chart[data-src]:not([data-drawn])")].filter((e) => e.offsetParent);
    if (!left.length) return;
    event.preventDefault();
    await Promise.all(left.map(fetchAndShow));
    print();
  });
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

  // an inserted or changed chart, see live.js
  const changed = (element) => { if (element.dataset.drawn) drawAgain([element]); };

  window.paribusCharts = { adopt, changed };
  fillRaw();
  adopt(document);
})();
