import assert from "node:assert/strict";
import { test } from "node:test";
import { parseInline, parseMarkdown, type Block, type Inline } from "../src/logic/markdown.ts";

const plain = (items: Inline[]): string =>
  items.map((item) => ("text" in item ? item.text : "children" in item ? plain(item.children) : "\n")).join("");

test("headings, paragraphs, lists, code, quotes, rules and tables", () => {
  const blocks = parseMarkdown("# Title\n\nfirst\nsecond\n\n- a\n- b\n  1. deep\n\n```py\n<b>x</b>\n```\n> said\n\n---\n\n| a | b |\n|---|--:|\n| 1 | **2** |\n");
  assert.deepEqual(blocks.map((block) => block.kind), ["heading", "paragraph", "list", "code", "quote", "rule", "table"]);
  const list = blocks[2] as Extract<Block, { kind: "list" }>;
  assert.equal(list.items.length, 2);
  assert.deepEqual(list.items[1].blocks.map((block) => block.kind), ["paragraph", "list"]);
  assert.equal((blocks[3] as { text: string }).text, "<b>x</b>");
  const table = blocks[6] as Extract<Block, { kind: "table" }>;
  assert.equal(table.head.length, 2);
  assert.equal(table.rows[0][1][0].kind, "strong");
});

test("tasks are done or to do", () => {
  const [list] = parseMarkdown("- [x] one\n- [ ] two\n- three") as Extract<Block, { kind: "list" }>[];
  assert.deepEqual(list.items.map((item) => item.checked), [true, false, null]);
});

test("bold, italic, deleted, code and links within a line", () => {
  const kinds = (text: string) => parseInline(text).map((item) => item.kind);
  assert.deepEqual(kinds("a **b** *c* ~~d~~ `e*f*`"), ["text", "strong", "text", "em", "text", "del", "text", "code"]);
  assert.deepEqual(kinds("**bold *and italic* text**"), ["strong"]);
  assert.deepEqual(kinds("[site](https://example.org/a)"), ["link"]);
  assert.deepEqual(kinds("see https://example.org/a."), ["text", "link", "text"]);
  assert.equal(plain(parseInline("train_loss_step and 2 * 3 * 4 and \\*no\\*")), "train_loss_step and 2 * 3 * 4 and *no*");
  assert.deepEqual(kinds("train_loss_step and 2 * 3 * 4 and \\*no\\*"), ["text"]);
});

test("a link leads to the web or is text", () => {
  for (const target of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "//example.org", "#/runs", "java\tscript:x", "https:"]) {
    const text = `[click](${target})`;
    const items = parseInline(text);
    assert.ok(items.every((item) => item.kind === "text"), target);
    assert.equal(plain(items), text);
  }
});

test("HTML is text", () => {
  const text = "<img src=x onerror=\"document.title='owned'\"><script>1</script>";
  assert.deepEqual(parseMarkdown(text), [{ kind: "paragraph", children: [{ kind: "text", text }] }]);
});

test("nothing makes it fail, and no letter of it is lost", () => {
  for (const text of ["", "\n\n", "**", "* ", "-", "1.", "`", "```", "[", "[](", "|", "|-|", "> > > > > > > > > > > > deep", "*".repeat(2000), "[".repeat(2000), "`".repeat(2001), "**a ".repeat(2000), "- ".repeat(500), "\u0000\ud800"]) {
    assert.ok(Array.isArray(parseMarkdown(text)), text.slice(0, 20));
  }
  assert.equal(plain(parseInline("**a ".repeat(50))), "**a ".repeat(50));
});
