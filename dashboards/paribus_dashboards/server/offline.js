// An exported file: data and plotly are unpacked on demand, and the hash of the address chooses the page.
(() => {
  const unpacked = async (id) => {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  let data = null;
  window.PARIBUS_DATA = async (at) => {
    data ??= unpacked("data").then(JSON.parse);
    const found = (await data)[at];
    if (!found) throw new Error(`not in this file: ${at}`);
    return found;
  };

  let plotly = null;
  window.PARIBUS_PLOTLY = () => (plotly ??= unpacked("plotly").then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }));

  const pages = [...document.querySelectorAll(".page")];
  const first = pages.length > 1 && pages.filter((p) => p.querySelector("nav")).every((p, _, all) => p.querySelector(".study-name").textContent === all[0].querySelector(".study-name").textContent)
    ? pages[1] : pages[0]; // a single study starts with its board

  const route = () => {
    const at = location.hash.slice(1).replace(/&(first|last|raw)=[^&]*/g, "");
    const plain = at.split("?")[0];
    const page = pages.find((p) => p.dataset.at === at) || pages.find((p) => p.dataset.at === plain) || first;
    if (!page.hidden) return;
    for (const p of pages) p.hidden = p !== page;
    document.title = page.dataset.title;
    scrollTo(0, 0);
  };
  // anchors inside a page: the hash is taken by the page, and other pages have anchors of the same name
  document.addEventListener("click", (event) => {
    const link = event.target.closest('.page a[href^="#"]:not([href^="#/"])');
    if (!link) return;
    event.preventDefault();
    const place = link.closest(".page").querySelector(`#${CSS.escape(link.hash.slice(1))}`);
    for (let e = place; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    place?.scrollIntoView({ block: "start" });
  });

  addEventListener("hashchange", route);
  addEventListener("popstate", route);
  route();
})();
