// Name, notes and tags of runs: shown, and edited in place where the server allows it.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Edit } from "../data/source.ts";
import { about, refreshRun, refreshRuns, source } from "../data/store.ts";
import type { Row, Run } from "../data/types.ts";
import { formatCount } from "../logic/format.ts";
import { Markdown } from "./markdown.tsx";
import { Problem, Section } from "./parts.tsx";

export function canEdit(): boolean {
  return about.value?.allow_edit === true;
}

// Where a button would be if the server allowed it; nothing in a report, which no server shows, and nothing of other
// machines, whose runs are edited there.
export function EditHint({ what }: { what: string }) {
  if (canEdit() || !source.value!.isLive || about.value?.machines.length) return null;
  return <p class="note">To {what} here, start the server with <code>trainvitals serve --allow-edit</code>.</p>;
}

export function Notes({ known }: { known: Run }) {
  const [isOpen, setOpen] = useState(false);
  const notes = notesOf(known);
  const tags = known.tags.map((tag) => <span class="badge" key={tag}>{tag}</span>);
  const edit = canEdit() && <button type="button" onClick={() => setOpen(true)}>edit</button>;
  if (!notes && !isOpen) {
    return tags.length ? <div class="notes-none">{tags}{edit}{!edit && <EditHint what="edit name, notes and tags" />}</div> : null;
  }
  return (
    <Section title="Notes" actions={!isOpen && edit}>
      {isOpen ? <RunForm known={known} onDone={() => setOpen(false)} /> : (
        <div class="notes">
          {tags.length > 0 && <p>{tags}</p>}
          <Markdown text={notes} />
        </div>
      )}
      {!isOpen && <EditHint what="edit name, notes and tags" />}
    </Section>
  );
}

export function hasNotes(known: Run): boolean {
  return notesOf(known) !== "" || known.tags.length > 0;
}

function notesOf(known: Run): string {
  return typeof known.details.notes === "string" ? known.details.notes : "";
}

// Only what was changed is sent: what others change meanwhile stays.
export function RunForm({ known, onDone }: { known: Run; onDone(): void }) {
  const [before] = useState({ name: known.name, notes: notesOf(known), tags: known.tags });
  const [name, setName] = useState(before.name);
  const [notes, setNotes] = useState(before.notes);
  const [tags, setTags] = useState(before.tags.join(", "));
  const [isPreview, setPreview] = useState(false);
  const wanted = splitTags(tags);
  const changes: Edit = {
    ...(name.trim() !== before.name && { name: name.trim() }),
    ...(notes !== before.notes && { notes }),
    ...changedTags(before.tags, wanted),
  };
  return (
    <Form label={`edit ${known.name}`} isReady={name.trim() !== ""} onDone={onDone} onSave={() => (Object.keys(changes).length ? save([known.key], changes) : Promise.resolve())}>
      <label>name<input type="text" value={name} maxLength={200} required onInput={(event) => setName(event.currentTarget.value)} ref={focusOnce} /></label>
      <label>tags<input type="text" value={tags} placeholder="separated by commas" onInput={(event) => setTags(event.currentTarget.value)} /></label>
      <label>notes<textarea rows={8} value={notes} maxLength={20000} placeholder="Markdown" onInput={(event) => setNotes(event.currentTarget.value)} /></label>
      <label class="choice"><input type="checkbox" checked={isPreview} onChange={() => setPreview(!isPreview)} /> preview</label>
      {isPreview && <div class="notes"><Markdown text={notes} /></div>}
    </Form>
  );
}

export function TagForm({ rows, onDone }: { rows: Row[]; onDone(): void }) {
  const [added, setAdded] = useState("");
  const [removed, setRemoved] = useState<string[]>([]);
  const there = [...new Set(rows.flatMap((row) => row.tags))].sort();
  const changes: Edit = { add_tags: splitTags(added), remove_tags: removed };
  return (
    <Form label={`tags of ${formatCount(rows.length, "run")}`} isReady={changes.add_tags!.length + removed.length > 0} onDone={onDone} onSave={() => save(rows.map((row) => row.key), changes)}>
      <label>add tags<input type="text" value={added} placeholder="separated by commas" onInput={(event) => setAdded(event.currentTarget.value)} ref={focusOnce} /></label>
      {there.length > 0 && (
        <fieldset>
          <legend>remove tags</legend>
          {there.map((tag) => (
            <label class="choice" key={tag}><input type="checkbox" checked={removed.includes(tag)} onChange={() => setRemoved(removed.includes(tag) ? removed.filter((item) => item !== tag) : [...removed, tag])} /> {tag}</label>
          ))}
        </fieldset>
      )}
    </Form>
  );
}

function Form({ label, isReady, children, onSave, onDone }: { label: string; isReady: boolean; children: ComponentChildren; onSave(): Promise<void>; onDone(): void }) {
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    onSave().then(onDone, (problem) => (setBusy(false), setError(problem)));
  };
  return (
    <form class="edit" aria-label={label} onSubmit={submit} onKeyDown={(event) => event.key === "Escape" && onDone()}>
      {children}
      {error && <Problem error={error} />}
      <footer>
        <button type="submit" class="primary" disabled={!isReady || isBusy}>save</button>
        <button type="button" onClick={onDone}>cancel</button>
      </footer>
    </form>
  );
}

async function save(keys: string[], changes: Edit): Promise<void> {
  for (const key of keys) await source.value!.edit(key, changes);
  await Promise.all([refreshRuns(), refreshRun()]);
}

function splitTags(text: string): string[] {
  return [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];
}

function changedTags(before: string[], wanted: string[]): Edit {
  const added = wanted.filter((tag) => !before.includes(tag));
  const removed = before.filter((tag) => !wanted.includes(tag));
  return { ...(added.length && { add_tags: added }), ...(removed.length && { remove_tags: removed }) };
}

function focusOnce(box: HTMLElement | null): void {
  box?.focus();
}
