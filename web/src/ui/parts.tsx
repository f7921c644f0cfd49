// Small pieces that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { SourceError } from "../data/source.ts";
import { go, route, setQuery, source, whole } from "../data/store.ts";
import type { Row } from "../data/types.ts";
import { formatPercent } from "../logic/format.ts";
import { formatRoute, number, type Route } from "../logic/route.ts";
import { smoothingWindow, USUAL_SMOOTHING } from "../logic/smooth.ts";

export function Link({ to, children, class: name, current, title }: { to: Route; children: ComponentChildren; class?: string; current?: boolean; title?: string }) {
  return (
    <a
      href={formatRoute(to)}
      class={name}
      title={title}
      aria-current={current ? "page" : undefined}
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
        event.preventDefault();
        go(to);
      }}
    >
      {children}
    </a>
  );
}

export function runRoute(key: string, page = "overview", query: [string, string][] = []): Route {
  return { page, run: key, query: new Map(query.map(([name, value]) => [name, [value]])) };
}

export function Status({ status, live, severity }: { status: string; live?: boolean; severity?: string }) {
  return <span class={`status ${status} ${severity ?? ""}`}>{live && <i class="pulse" aria-hidden="true" />}{status}</span>;
}

// The status of a run, coloured by its health, and what is or was wrong with it.
export function RunStatus({ row }: { row: Row }) {
  return <><Status status={row.status} live={row.live && source.value!.isLive} severity={row.health.severity} />{row.problems && <span class={`problems ${row.health.severity}`} title={row.problems}>{row.problems}</span>}</>;
}

export function Problem({ error }: { error: Error }) {
  const hint = error instanceof SourceError ? error.hint : "";
  return (
    <div class="problem" role="alert">
      <b>{error.message}</b>
      {hint && <span>{hint}</span>}
    </div>
  );
}

// Faded in after a moment: most answers arrive before that.
export function Loading() {
  return <p class="loading" role="status" aria-busy="true">loading…</p>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Section({ title, children, note, actions, id, folded, onFold }: { title: string; children: ComponentChildren; note?: ComponentChildren; actions?: ComponentChildren; id?: string; folded?: boolean; onFold?(): void }) {
  return (
    <section class="section" id={id}>
      <header><h2>{onFold ? <button type="button" class="fold" aria-expanded={!folded} onClick={onFold}>{title}</button> : title}</h2>{note && <span class="note">{note}</span>}<span class="tools">{actions}</span></header>
      {children}
    </section>
  );
}

export function Fact({ title, value, note, tone }: { title: string; value: ComponentChildren; note?: ComponentChildren; tone?: string }) {
  return (
    <div class={`fact ${tone ?? ""}`}>
      <span class="fact-title">{title}</span>
      <span class={`fact-value ${String(value).length > 8 ? "long" : ""}`}>{value}</span>
      {note && <span class="fact-note">{note}</span>}
    </div>
  );
}

// Every choice has a label; a quiet one says it to screen readers only.
export function Choice<T extends string>({ label, quiet, value, options, onChange }: { label: string; quiet?: boolean; value: T; options: readonly (readonly [T, string])[]; onChange(value: T): void }) {
  return (
    <label class="choice">
      {!quiet && <span>{label}</span>}
      <select value={value} aria-label={label} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {options.map(([name, title]) => <option key={name} value={name}>{title}</option>)}
      </select>
    </label>
  );
}

// That numbers of these runs were made up for a demonstration.
export function Simulated({ rows }: { rows: Row[] }) {
  const count = rows.filter((row) => row.simulated).length;
  return count ? <span class="badge warning">{count === rows.length ? "simulated" : `${count} simulated`}</span> : null;
}

export function smoothingOf(route: Route): number {
  return number(route, "smooth") ?? USUAL_SMOOTHING;
}

// How much of what is shown a smoothed value is made of: the slider alone would mean something else in every tool.
export function Smoothing({ value }: { value: number }) {
  const text = value > 0 ? formatPercent(smoothingWindow(value)) : "off";
  return (
    <label class="choice" title="smoothing window on each side, as a share of the shown range">
      <span>smoothing</span>
      <input type="range" min={0} max={1} step={0.05} value={value} aria-label="smoothing" aria-valuetext={text} onInput={(event) => setQuery({ smooth: event.currentTarget.value }, true)} />
      <output class="dim">{text}</output>
    </label>
  );
}

export function Search({ value, placeholder, onInput, label }: { value: string; placeholder: string; label: string; onInput(value: string): void }) {
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focus = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        box.current?.focus();
      }
    };
    document.addEventListener("keydown", focus);
    return () => document.removeEventListener("keydown", focus);
  }, []);
  return (
    <input
      ref={box}
      class="search"
      type="search"
      value={value}
      placeholder={placeholder}
      aria-label={label}
      spellcheck={false}
      onInput={(event) => onInput(event.currentTarget.value)}
      onKeyDown={(event) => event.key === "Escape" && (onInput(""), box.current?.blur())}
    />
  );
}

const QUIET_MS = 500;
const EACH_MS = 30;
let queued = 0;

// Whether an element is, or was, near the screen: what nobody scrolls to is never requested. What is at the top of a
// page need not wait for the browser to find out. A report has everything at hand and may be printed at any time, and
// paper does not scroll: the rest of its page follows, one after the other.
export function useNear<T extends HTMLElement>(atTop = false) {
  const place = useRef<T>(null);
  const [near, setNear] = useState(atTop || whole.value);
  useEffect(() => {
    if (!place.current || near) return;
    const watcher = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: "300px" },
    );
    watcher.observe(place.current);
    const soon = source.value?.isLive === false ? setTimeout(() => setNear(true), QUIET_MS + EACH_MS * queued) : undefined;
    queued++;
    return () => {
      queued--;
      watcher.disconnect();
      clearTimeout(soon);
    };
  }, [near]);
  return [place, near] as const;
}

export function Json({ value }: { value: unknown }) {
  return <pre class="json" tabIndex={0}>{JSON.stringify(value, null, 2)}</pre>;
}

export function usePage(): Route {
  return route.value;
}
