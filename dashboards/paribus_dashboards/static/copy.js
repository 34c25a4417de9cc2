// "Copy link": the address of what is shown. <div data-exact="/..."> has it where the plain address would show something
// else later, such as the newest step of a run that trains. A token never is part of it.
(() => {
  const button = document.querySelector(".copy-link");
  if (!button || window.PARIBUS_DATA) return;
  const words = button.textContent;

  const address = () => {
    const url = new URL(document.querySelector("[data-exact]")?.dataset.exact || location.href, location.href);
    if (url.searchParams.has("token")) url.searchParams.delete("token");
    return url.href;
  };

  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(address());
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = words; }, 2000);
    } catch { // browsers give no clipboard to a page without encryption
      prompt("Copy this link", address());
    }
  });
})();
