/* Keeps an open report up to date: polls the versions of sections, fetches those that changed, and
   patches only what differs, so that scroll position, focus, folds and charts stay. */
"use strict";
(() => {
  const bar = document.getElementById("live");
  const status = bar.querySelector("[data-live=state]");
  const clock = bar.querySelector("[data-live=time]");
  const about = document.querySelector("header p");
  const content = document.getElementById("content");
  const links = document.querySelector("nav ol");
  const versions = new Map();  // of the sections that the page shows
  const figures = (window.report.figures = {});
  const POLL_MS = 1000;
  const SET_BY_READERS = new Set(["open", "aria-sort", "tabindex", "style"]);
  let order = [];  // keys of all sections

  function say(state, kind) {
    if (status.textContent !== state) status.textContent = state;
    bar.dataset.kind = kind;
  }

  async function poll() {
    try {
      const answer = await fetch("news", { cache: "no-store" });
      if (answer.status === 401) say("the dashboard was restarted: open its new link", "lost");
      else await update(await parsed(answer));
    } catch {
      say("no connection; trying again", "lost");
    }
    setTimeout(poll, POLL_MS);
  }

  async function parsed(answer) {
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.json();
  }

  async function update(news) {
    say(news.state, "well");
    if (about.textContent !== news.about) about.textContent = news.about;
    order = Object.keys(news.sections);
    const changed = order.filter((key) => versions.get(key) !== news.sections[key]);
    if (changed.length) bar.removeAttribute("data-current");
    for (const key of changed) {
      const { version, section } = await parsed(await fetch(`sections/${key}`, { cache: "no-store" }));
      versions.set(key, version);
      put(key, section);
    }
    clock.textContent = `${new Date().toISOString().slice(11, 19)} UTC`;
    bar.toggleAttribute("data-current", !news.waiting);
  }

  function put(key, section) {
    const there = document.getElementById(key);
    if (section === null) {
      there?.remove();
    } else {
      keep(section.figures);
      const fresh = new DOMParser().parseFromString(section.html, "text/html").body.firstElementChild;
      const node = document.importNode(fresh, true);
      const focused = document.activeElement;
      if (there) patch(there, node);
      else enter(key, node);
      if (focused?.isConnected && document.activeElement !== focused) {
        focused.focus({ preventScroll: true });
      }
    }
    list(key, section);
    document.dispatchEvent(new CustomEvent("report:section", { detail: key }));
  }

  /* Charts that are as they were keep their object, by which the page knows not to draw them. */
  function keep(given) {
    for (const [key, figure] of Object.entries(given)) {
      const now = JSON.stringify(figure);
      if (figures[key] && figures[key].text === now) continue;
      if (figure.layout) figure.layout.uirevision ??= "kept";  // zoom and brushes outlive new data
      Object.defineProperty(figure, "text", { value: now, enumerable: false });
      figures[key] = figure;
    }
  }

  /* The contents name every section that is there, in the order of the page. */
  function list(key, section) {
    const link = links.querySelector(`a[href="#${CSS.escape(key)}"]`);
    if (section === null) {
      link?.closest("li").remove();
    } else if (!link) {
      const made = document.createElement("a");
      made.href = `#${key}`;
      made.textContent = section.title;
      const item = document.createElement("li");
      item.append(made);
      const place = [...content.querySelectorAll(":scope > section")].findIndex((s) => s.id === key);
      links.insertBefore(item, links.children[place] ?? null);
    } else if (link.textContent !== section.title) {
      link.textContent = section.title;
    }
  }

  /* A section that was not there before takes its place in the order of the report. */
  function enter(key, node) {
    const later = order.slice(order.indexOf(key) + 1);
    const next = later.map((other) => document.getElementById(other)).find(Boolean);
    content.insertBefore(node, next?.parentNode === content ? next : null);
  }

  function keyOf(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    if (node.nodeName === "TR") return node.cells[0]?.textContent ?? "";
    return node.dataset.key ?? node.id ?? "";
  }

  function patch(old, fresh) {
    if (old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.matches(".chart, .choices")) return;  // those belong to the page's script
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !SET_BY_READERS.has(name)) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !SET_BY_READERS.has(name)) old.removeAttribute(name);
    }
    patchChildren(old, fresh);
    if (old.nodeName === "TABLE") sortAgain(old);
  }

  /* New rows come in their own order: sort again by the column that the reader chose. */
  function sortAgain(table) {
    const head = table.querySelector("thead th[aria-sort$=ending]");
    if (!head) return;
    head.setAttribute("aria-sort", head.getAttribute("aria-sort") === "ascending" ? "none" : "ascending");
    head.click();
  }

  function patchChildren(old, fresh) {
    const known = new Map();
    for (const child of old.childNodes) {
      if (keyOf(child)) known.set(child.nodeName + keyOf(child), child);
    }
    let place = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const key = keyOf(next);
      const alike = place && !keyOf(place) && place.nodeName === next.nodeName ? place : null;
      const match = key ? known.get(next.nodeName + key) : alike;
      if (!match || match.parentNode !== old) {
        old.insertBefore(next, place);
        continue;
      }
      known.delete(next.nodeName + key);
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      patch(match, next);
    }
    while (place) {
      const after = place.nextSibling;
      place.remove();
      place = after;
    }
  }

  poll();
})();
