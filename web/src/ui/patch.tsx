// What was changed in the run's repository since its commit; its text is asked for when it is unfolded.
import { useEffect, useState } from "preact/hooks";
import { source } from "../data/page.ts";
import type { PatchText, Run } from "../data/types.ts";
import { formatValue } from "../logic/format.ts";
import { parsePatch } from "../logic/patch.ts";
import { Loading, Problem, Section } from "./parts.tsx";

export function Patch({ known }: { known: Run }) {
  const [open, setOpen] = useState(false);
  const { patch } = known;
  if (!patch) return null;
  const untracked = patch.untracked.length > 0 && <p class="note untracked">Untracked, not in the patch: {patch.untracked.join(", ")}{patch.untracked_cut && " and more"}</p>;
  if (!patch.kept) return <Section title="Uncommitted changes" note={`patch ${patch.title}`}>{untracked}</Section>;
  return (
    <Section title="Uncommitted changes" note={patch.title} folded={!open} onFold={() => setOpen(!open)}>
      {open && (
        <>
          {patch.warning && <p class="note warning">{patch.warning}</p>}
          {untracked}
          <Text known={known} />
        </>
      )}
    </Section>
  );
}

function Text({ known }: { known: Run }) {
  const [found, setFound] = useState<PatchText | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const { attempt, bytes, commit } = known.patch!;
  useEffect(() => {
    let current = true;
    setFound(null);
    source.value!.patch(known.key).then((text) => current && (setFound(text), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [known.key, attempt]);
  if (error) return <Problem error={error} />;
  if (!found) return <Loading />;
  return (
    <>
      <p class="note">
        Apply it to commit {commit.slice(0, 10)}: <code>trainvitals runs show {known.id} --patch | git apply</code>
        {found.cut && <> (of its {formatValue(bytes / 1024)} KB only the beginning is shown here)</>}
      </p>
      <pre class="text patch" tabIndex={0} aria-label="patch">{parsePatch(found.text).map((line) => <span class={line.kind}>{line.text}{"\n"}</span>)}</pre>
    </>
  );
}
