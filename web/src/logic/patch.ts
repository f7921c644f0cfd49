// A git patch, line by line.
export type PatchLine = { text: string; kind: "file" | "hunk" | "added" | "removed" | "" };

export function parsePatch(patch: string): PatchLine[] {
  let inHunk = false; // before the first hunk of a file, +++ and --- are its names
  return patch.replace(/\n$/, "").split("\n").map((text) => {
    if (text.startsWith("diff --git ")) {
      inHunk = false;
      return { text, kind: "file" };
    }
    if (text.startsWith("@@ ")) {
      inHunk = true;
      return { text, kind: "hunk" };
    }
    return { text, kind: !inHunk ? "" : text.startsWith("+") ? "added" : text.startsWith("-") ? "removed" : "" };
  });
}
