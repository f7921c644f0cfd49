// A table. Where it is wider than the window its edge is shaded and it scrolls; on a phone each row becomes a few lines,
// numbers with the title of their column before them.
import type { ComponentChildren } from "preact";

export interface TableColumn {
  title: string;
  // Shown in the header instead of the title.
  head?: ComponentChildren;
  right?: boolean;
  // Wrapped text.
  wide?: boolean;
  // How the rows are sorted by this column.
  sorted?: "ascending" | "descending";
}

export type TableCell = string | number | null | undefined | { show: ComponentChildren; class?: string; hint?: string };

export interface TableRow {
  key: string;
  class?: string;
  cells: TableCell[];
  // What a click on the row does, where it hits no link, button or box.
  onOpen?(event: MouseEvent): void;
  // Expanded below the row.
  below?: ComponentChildren;
}

// `part`: the rows are only those from `from` on of `count`, with this much space in place of the others.
export function Table({ columns, rows, class: name, part }: { columns: TableColumn[]; rows: TableRow[]; class?: string; part?: { from: number; count: number; above: number; below: number } }) {
  const space = (where: string, height: number | undefined) => height ? <tr key={where} class="space" aria-hidden="true" style={{ height: `${height}px` }}><td colSpan={columns.length} /></tr> : null;
  return (
    <div class="table-box">
      <table class={name} aria-rowcount={part && part.count + 1}>
        <thead>
          <tr aria-rowindex={part && 1}>{columns.map((column) => <th key={column.title} class={column.right ? "right" : ""} aria-sort={column.sorted}>{column.head ?? column.title}</th>)}</tr>
        </thead>
        <tbody>
          {space("above", part?.above)}
          {rows.flatMap((row, at) => [
            <tr key={row.key} aria-rowindex={part && part.from + at + 2} class={`${row.class ?? ""} ${row.onOpen ? "opens" : ""}`} onClick={(event) => row.onOpen && isMeant(event) && row.onOpen(event)}>{row.cells.map((cell, at) => <Cell key={at} cell={cell} column={columns[at]} />)}</tr>,
            row.below && <tr key={`${row.key} below`}><td colSpan={columns.length}>{row.below}</td></tr>,
          ])}
          {space("below", part?.below)}
        </tbody>
      </table>
    </div>
  );
}

// Not a click on something else within, and not the end of selecting text.
function isMeant(event: MouseEvent): boolean {
  const target = event.target as HTMLElement;
  return !target.closest("a, button, input, label, select, summary") && !getSelection()?.toString();
}

function Cell({ cell, column }: { cell: TableCell; column: TableColumn }) {
  const { show, class: name, hint } = typeof cell === "object" && cell !== null ? cell : { show: cell };
  const kinds = [column.right && "right", column.wide && "wide", show === "–" && "none", name].filter(Boolean).join(" ");
  return <td class={kinds} title={hint} data-title={column.title}>{show}</td>;
}
