// The program's output: its tail, followed while the run is live, searchable, progress bars folded.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { source } from "../data/store.ts";
import type { TextPart } from "../data/types.ts";
import { consoleTitle, follow as grow, linesOf, matching } from "../logic/console.ts";
import { fileName } from "../logic/csv.ts";
import { formatBytes, formatCount } from "../logic/format.ts";
import { download } from "./download.ts";
import { Choice, Problem, Section } from "./parts.tsx";

const AGAIN_MS = 2000;
const NEAR_END = 24;
const MOST_LINES = 5000;

export function Console({ runKey, names, live, search }: { runKey: string; names: string[]; live: boolean; search: string }) {
  const [name, setName] = useState(names.find((item) => !item.includes(".older.")) ?? names[0]);
  const [follow, setFollow] = useState(true);
  const [folded, setFolded] = useState(true);
  const [file, setFile] = useState<TextPart | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const box = useRef<HTMLPreElement>(null);
  const follows = live && follow && source.value!.isLive;
  useEffect(() => {
    let current = true;
    let timer = 0;
    let known: TextPart | null = null;
    const ask = () => {
      source.value!.text(runKey, "console", name, known?.next).then(
        (found) => {
          if (!current) return;
          if (!known || found.size !== known.size) setFile((known = grow(known, found)));
          setError(null);
        },
        (problem) => current && setError(problem),
      ).finally(() => {
        if (current && follows) timer = window.setTimeout(ask, AGAIN_MS);
      });
    };
    ask();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [runKey, name, follows]);
  const lines = useMemo(() => {
    return matching(linesOf(file?.text ?? "", folded), search);
  }, [file, folded, search]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  // Scrolling up stops following; scrolling back to the end resumes it.
  const onScroll = () => {
    const at = box.current!;
    setFollow(at.scrollHeight - at.scrollTop - at.clientHeight < NEAR_END);
  };
  const note = file ? `${file.cut ? "last part of " : ""}${formatBytes(file.size)}${search ? `, ${formatCount(lines.length, "matching line")}` : ""}` : "";
  const shown = lines.slice(-MOST_LINES);
  return (
    <Section
      title="Console"
      note={note}
      actions={
        <>
          {names.length > 1 && <Choice label="output of" value={name} options={names.map((item) => [item, consoleTitle(item)] as const)} onChange={setName} />}
          <label class="choice"><input type="checkbox" checked={folded} onChange={() => setFolded(!folded)} /><span>fold progress bars</span></label>
          {live && source.value!.isLive && <label class="choice"><input type="checkbox" checked={follow} onChange={() => setFollow(!follow)} /><span>follow</span></label>}
          <button type="button" disabled={!file} onClick={() => download(fileName(name.replace(/\.log$/, ""), "txt"), "text/plain", lines.map((line) => line.text).join("\n") + "\n")}>save</button>
        </>
      }
    >
      {error && !file ? <Problem error={error} /> : (
        <pre class="text console" ref={box} tabIndex={0} aria-label="console output" onScroll={onScroll}>
          {shown.map((line, at) => <div key={at}>{line.text || " "}{line.folded > 0 && <span class="dim"> ×{line.folded + 1}</span>}</div>)}
        </pre>
      )}
    </Section>
  );
}
