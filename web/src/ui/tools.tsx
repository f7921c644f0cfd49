// The buttons that every chart has: full screen, PNG, and CSV of what is shown.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect } from "preact/hooks";
import { Icon } from "./icons.tsx";

export interface ToolsProps {
  title: string;
  children?: ComponentChildren;
  onFull(): void;
  onPng(): void;
  onCsv(): void;
}

export function Tools({ title, children, onFull, onPng, onCsv }: ToolsProps) {
  return (
    <span class="tools">
      {children}
      <button type="button" title="full screen" aria-label={`${title}: full screen`} onClick={onFull}><Icon name="full" /></button>
      <button type="button" title="save as PNG" aria-label={`${title}: save as PNG`} onClick={onPng}><Icon name="image" /></button>
      <button type="button" title="save shown data as CSV" aria-label={`${title}: save as CSV`} onClick={onCsv}><Icon name="table" /></button>
    </span>
  );
}

// Whether the element fills the screen, and the switch for it. Where the browser refuses or cannot, it fills the window.
export function useFullScreen(box: RefObject<HTMLElement | null>) {
  const full = useSignal(false);
  useEffect(() => {
    const changed = () => (full.value = document.fullscreenElement === box.current);
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.fullscreenElement) full.value = false;
    };
    document.addEventListener("fullscreenchange", changed);
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("fullscreenchange", changed);
      document.removeEventListener("keydown", onKey);
    };
  }, []);
  const fillWindow = () => (full.value = true);
  const toggle = () => {
    if (document.fullscreenElement) void document.exitFullscreen();
    else if (full.value) full.value = false;
    else if (box.current && "requestFullscreen" in box.current) box.current.requestFullscreen().catch(fillWindow);
    else fillWindow();
  };
  return [full, toggle] as const;
}
