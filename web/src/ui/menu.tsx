// A button that opens a box below it. Escape and a click elsewhere close it; what is inside is made when it opens.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export function Menu({ title, children }: { title: string; children(): ComponentChildren }) {
  const box = useRef<HTMLDetailsElement>(null);
  const [isOpen, setOpen] = useState(false);
  const [isLeft, setLeft] = useState(false);
  // Controls wrap, and a button at the left edge of the page has no room for a box to the left of it.
  useLayoutEffect(() => {
    const inner = box.current?.querySelector(":scope > div");
    if (isOpen && inner) setLeft(box.current!.getBoundingClientRect().left + inner.clientWidth < document.documentElement.clientWidth);
  }, [isOpen]);
  useEffect(() => {
    if (!isOpen) return;
    const close = () => box.current && (box.current.open = false);
    const outside = (event: Event) => !box.current?.contains(event.target as Node) && close();
    const escape = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      close();
      box.current?.querySelector("summary")?.focus();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("focusin", outside);
    document.addEventListener("keydown", escape);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("focusin", outside);
      document.removeEventListener("keydown", escape);
    };
  }, [isOpen]);
  return (
    <details class="menu" ref={box} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{title}</summary>
      {isOpen && <div class={isLeft ? "left" : ""}>{children()}</div>}
    </details>
  );
}
