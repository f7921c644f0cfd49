// Markdown as elements of the page: its text never becomes HTML.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { parseMarkdown, type Block, type Inline } from "../logic/markdown.ts";

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => parseMarkdown(text), [text]);
  return <div class="markdown">{blocks.map(drawBlock)}</div>;
}

function drawBlock(block: Block): ComponentChildren {
  switch (block.kind) {
    case "heading": {
      const Heading = block.level < 3 ? "h3" : "h4"; // below the section's own
      return <Heading>{block.children.map(drawInline)}</Heading>;
    }
    case "paragraph":
      return <p>{block.children.map(drawInline)}</p>;
    case "code":
      return <pre class="text" tabIndex={0}>{block.text}</pre>;
    case "quote":
      return <blockquote>{block.blocks.map(drawBlock)}</blockquote>;
    case "rule":
      return <hr />;
    case "table":
      return (
        <div class="table-box">
          <table>
            <thead><tr>{block.head.map((cell) => <th>{cell.map(drawInline)}</th>)}</tr></thead>
            <tbody>{block.rows.map((row) => <tr>{row.map((cell) => <td>{cell.map(drawInline)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      );
    case "list": {
      const items = block.items.map((item) => (
        <li class={item.checked === null ? "" : "task"}>
          {item.checked !== null && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "to do"} />}
          {item.blocks.map((inner, at) => (at === 0 && inner.kind === "paragraph" ? inner.children.map(drawInline) : drawBlock(inner)))}
        </li>
      ));
      return block.ordered ? <ol start={block.start}>{items}</ol> : <ul>{items}</ul>;
    }
  }
}

function drawInline(item: Inline): ComponentChildren {
  switch (item.kind) {
    case "text":
      return item.text;
    case "break":
      return <br />;
    case "code":
      return <code>{item.text}</code>;
    case "link":
      return <a href={item.href} target="_blank" rel="noopener noreferrer nofollow">{item.children.map(drawInline)}</a>;
    default: {
      const Element = item.kind;
      return <Element>{item.children.map(drawInline)}</Element>;
    }
  }
}
