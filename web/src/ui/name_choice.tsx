// A list of names to tick, with a search; those that were chosen when it opened come first.
import { useState } from "preact/hooks";
import { formatCount } from "../logic/format.ts";
import { search } from "../logic/metrics.ts";

export function NameChoice({ noun, offered, titles, chosen, onChange }: { noun: string; offered: string[]; titles?: ReadonlyMap<string, string>; chosen: string[]; onChange(names: string[]): void }) {
  const [text, setText] = useState("");
  const [before] = useState(chosen); // nothing moves while boxes are ticked
  const all = [...before, ...offered.filter((name) => !before.includes(name))];
  const titleOf = (name: string) => titles?.get(name) ?? name;
  const matching = new Set(search(all.map(titleOf), text));
  const found = all.filter((name) => matching.has(titleOf(name)));
  return (
    <>
      <header><input class="search" type="search" aria-label={`search ${noun}s`} placeholder={`search ${formatCount(all.length, noun)}`} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} /></header>
      {found.map((name) => (
        <label key={name} title={titleOf(name)}>
          <input type="checkbox" checked={chosen.includes(name)} onChange={() => onChange(chosen.includes(name) ? chosen.filter((item) => item !== name) : [...chosen, name])} />
          <span class="menu-name">{titleOf(name)}</span>
        </label>
      ))}
      {found.length === 0 && <p class="dim">No {noun}s match “{text}”</p>}
    </>
  );
}
