"use strict";
(() => {
  const root = document.documentElement;
  const store = {
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (v) => { try { localStorage.setItem("theme", v); } catch { /* it lasts for this page only */ } },
  };
  const saved = store.get();
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store.set(root.dataset.theme);
  });

  const search = document.getElementById("search");
  const found = [...document.querySelectorAll("[data-find]")];
  const groups = [...document.querySelectorAll("nav section, main .group")];
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const one of found) one.classList.toggle("hidden", !words.every((w) => one.dataset.find.includes(w)));
    for (const g of groups) g.classList.toggle("hidden", !g.querySelector("[data-find]:not(.hidden)"));
  });
  addEventListener("keydown", (e) => {
    if (e.key === "/" && document.activeElement !== search) { e.preventDefault(); search.focus(); }
    if (e.key === "Escape" && document.activeElement === search) {
      search.value = ""; search.dispatchEvent(new Event("input")); search.blur();
    }
  });

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const text = button.closest(".panel").querySelector("code").textContent;
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "select it, then copy"; }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  const links = new Map([...document.querySelectorAll("nav li a")].map((a) => [a.hash.slice(1), a]));
  let here = null;
  const watch = new IntersectionObserver((entries) => {
    for (const e of entries) {
      if (!e.isIntersecting || !links.has(e.target.id)) continue;
      here?.classList.remove("here");
      here = links.get(e.target.id);
      here.classList.add("here");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const article of document.querySelectorAll("article")) watch.observe(article);
})();
