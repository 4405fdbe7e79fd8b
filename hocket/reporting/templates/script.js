"use strict";
{
  // All timelines of a page share one scale: they zoom and scroll together.
  const lines = [...document.querySelectorAll(".timeline")].map(root => ({
    root, scroll: root.querySelector(".scroll"), label: root.querySelector(".label"), zoom: root.querySelector(".zoom"),
  }));
  let z = 1;
  // --k: drawing units by CSS pixels, so that one screen shows the whole window and letters keep their shape.
  const fit = () => {
    for (const {root, scroll, label} of lines) {
      root.style.setProperty("--k", 1120 / Math.max(560, scroll.clientWidth - label.offsetWidth - 2));
    }
  };
  const set = (next, at) => {
    next = Math.min(16, Math.max(1, next));
    if (next === z || !lines.length) return;
    const place = (lines[0].scroll.scrollLeft + at) / z * next - at;
    z = next;
    for (const {root, scroll, zoom} of lines) {
      root.style.setProperty("--z", z);
      root.dataset.z = z;
      zoom.querySelector("output").textContent = z + "×";
      scroll.scrollLeft = place;
    }
  };
  for (const {scroll, label, zoom} of lines) {
    zoom.hidden = false;
    zoom.addEventListener("click", event => {
      const by = event.target.dataset.by;
      if (by) set(by > 0 ? z * 2 : z / 2, (scroll.clientWidth - label.offsetWidth) / 2);
    });
    scroll.addEventListener("wheel", event => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      set(event.deltaY < 0 ? z * 2 : z / 2, event.clientX - scroll.getBoundingClientRect().left - label.offsetWidth);
    }, {passive: false});
    scroll.addEventListener("scroll", () => {
      for (const other of lines) if (other.scroll !== scroll) other.scroll.scrollLeft = scroll.scrollLeft;
    }, {passive: true});
  }
  fit();
  addEventListener("resize", fit);
  addEventListener("beforeprint", () => {
    set(1, 0);
    for (const {root} of lines) root.style.setProperty("--k", 1);
  });
  addEventListener("afterprint", fit);
}
{
  // The drawings carry their texts as <title>; here they show at once, and on a touch.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  // Where there are many blocks, those that differ in the index alone share a path: "M x y h w ..." for each of data-i.
  const boxes = path => path.boxes ||= path.getAttribute("d").split("M").slice(1).map((d, n) => {
    const [x, , w] = d.split(/[ hvz]/);
    return {d: "M" + d, x: +x, w: +w, index: path.dataset.i.split(" ")[n]};
  });
  const time = s => s >= 1 ? +s.toPrecision(3) + " s" : s >= 1e-3 ? +(s * 1e3).toPrecision(3) + " ms" : +(s * 1e6).toPrecision(3) + " µs";
  const shared = (path, clientX) => {
    const area = path.ownerSVGElement.getBoundingClientRect(), x = (clientX - area.left) / area.width * 1120;
    const box = boxes(path).find(box => box.x <= x && x <= box.x + box.w);
    if (!box) return null;
    const unit = +path.closest(".timeline").dataset.unit;
    return path.dataset.t.replaceAll("{}", box.index) + "\nat " + time(box.x * unit) + " for " + time(box.w * unit);
  };
  const told = event => {
    const owner = event.target.closest && event.target.closest("main svg path, main svg g, main svg circle, main svg");
    for (let node = owner; node && node.tagName !== "DIV"; node = node.parentNode) {
      const text = node.dataset && node.dataset.t && shared(node, event.clientX);
      if (text) return text;
      const title = [...node.children].find(child => child.tagName === "title");
      if (title) { node.dataset.told = title.textContent; title.remove(); node.setAttribute("aria-label", node.dataset.told); }
      if (node.dataset && node.dataset.told) return node.dataset.told;
    }
    return "";
  };
  document.addEventListener("pointermove", event => {
    const text = told(event);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
  });
  const microbatch = text => (/^(?:forward|backward|send|receive|load|drop)\b[^#\n]*#(\d+)/.exec(text) || [])[1];
  const words = node => node.dataset.told || (node.querySelector(":scope > title") || {}).textContent || "";
  document.addEventListener("click", event => {
    const block = event.target.closest && event.target.closest(".lanes svg path");
    for (const copy of document.querySelectorAll(".lanes .copy")) copy.remove();
    for (const node of document.querySelectorAll(".lanes .on")) node.classList.remove("on");
    const wanted = block && microbatch(block.dataset.t ? shared(block, event.clientX) || "" : words(block));
    for (const line of document.querySelectorAll(".timeline")) line.classList.toggle("follow", !!wanted);
    if (!wanted) return;
    for (const node of document.querySelectorAll(".lanes svg path")) {
      if (!node.dataset.t) { if (microbatch(words(node)) === wanted) node.classList.add("on"); continue; }
      if (!node.dataset.t.includes("#")) continue;
      const own = boxes(node).filter(box => box.index === wanted);
      if (!own.length) continue;
      const copy = node.cloneNode(false);
      copy.boxes = own;
      copy.setAttribute("d", own.map(box => box.d).join(""));
      copy.dataset.i = own.map(box => box.index).join(" ");
      copy.classList.add("copy", "on");
      node.after(copy);
    }
  });
}
