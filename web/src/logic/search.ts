// The search for runs, by the rules of src/trainvitals/views/data/run_search.py: typing must not wait for a server, and a
// report has none. Both are tested against tests/data/run_search.json.
import type { Row } from "../data/types.ts";

export interface Part {
  text: string; // as it was typed
  value: string;
  field: string; // empty: name, id, project and tags
  operator: string; // empty: contains; "~": matches the expression; "=", "!=", "<", "<=", ">" or ">="
  negated: boolean;
}

export interface Problem {
  message: string;
  hint: string;
}

const STATUSES = ["running", "stalled", "hung", "finished", "failed", "killed", "crashed", "unreadable"];
const TEXTS = ["name", "id", "project", "tag", "status", "host", "kind", "slurm", "pod"];
const NUMBERS = ["step", "seconds", "attempt"];
const ORDERS = ["<", "<=", ">", ">="];
const MOST_TEXT = 500;
const TOKEN = /(-?)(?:\/((?:[^/]|\/(?!\s|$))+)\/(?=\s|$)|((?:"[^"]*"|[^\s"])+))/g;
const CONDITION = /^((?:"[^"]*"|[^"\s:=<>!~])+)(<=|>=|!=|[=<>~:])(.*)$/s;
const NUMBER = /^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)$/i;

// The parts that can be understood, so that a list does not jump while one is typed, and what is wrong with the first
// that cannot.
export function parseSearch(text: string): { parts: Part[]; problem: Problem | null } {
  if ((text.split('"').length - 1) % 2) {
    return { parts: parseSearch(text.slice(0, text.lastIndexOf('"')).replace(/\S+$/, "")).parts, problem: { message: "missing closing quote", hint: 'close it: "two words"' } };
  }
  const parts: Part[] = [];
  let problem: Problem | null = null;
  for (const found of text.matchAll(TOKEN)) {
    const part = parsePart(found);
    const wrong = check(part);
    if (!wrong) parts.push(part);
    problem ??= wrong;
  }
  return { parts, problem };
}

function parsePart([text, dash, expression, word]: RegExpExecArray): Part {
  const plain = { text, field: "", negated: dash !== "" };
  if (expression !== undefined) return { ...plain, value: expression, operator: "~" };
  const condition = CONDITION.exec(word);
  if (!condition) return { ...plain, value: word.replaceAll('"', ""), operator: "" };
  const [field, operator, value] = condition.slice(1).map((item) => item.replaceAll('"', ""));
  return { ...plain, value, field: field === "tags" ? "tag" : field, operator: operator === ":" ? "=" : operator };
}

function check(part: Part): Problem | null {
  const { text, value, field, operator } = part;
  if (!operator) return null;
  if (!value) return { message: `'${text}' has no value`, hint: "such as lr>0.01, status:failed or name~regex" };
  if (operator === "~" && !toExpression(value)) return { message: `'${text}' is not a valid regular expression`, hint: "to search for this text, put it in quotes" };
  if (ORDERS.includes(operator) && TEXTS.includes(field)) return { message: `'${text}' compares text as a number`, hint: `type ${field}:TEXT or ${field}~REGEX` };
  if (ORDERS.includes(operator) && toNumber(value) === null) return { message: `'${value}' in '${text}' is not a number`, hint: "type a number, such as lr>0.01" };
  if (field === "status" && operator !== "~" && !STATUSES.includes(value.toLowerCase())) return { message: `'${value}' in '${text}' is not a status`, hint: `one of ${STATUSES.join(", ")}` };
  return null;
}

export function searchRows(rows: Row[], parts: Part[]): Row[] {
  const tests = parts.map((part) => ({ ...part, holds: makeTest(part) }));
  return rows.filter((row) => tests.every(({ field, negated, holds }) => holds(valuesOf(row, field)) !== negated));
}

// What to say of the first field that no run has.
export function findUnknown(rows: Row[], parts: Part[]): string {
  const unknown = parts.find(({ field }) => field && !TEXTS.includes(field) && !NUMBERS.includes(field) && !rows.some((row) => valuesOf(row, field).length));
  return unknown ? `no run has '${unknown.field}'` : "";
}

// From the values that a run has there, which may be none, to whether the part holds.
function makeTest(part: Part): (values: unknown[]) => boolean {
  const wanted = part.value.toLowerCase();
  const number = toNumber(part.value);
  const isEqual = (value: unknown) => {
    const left = toNumber(value);
    return left === null || number === null ? toText(value).toLowerCase() === wanted : left === number || (Number.isNaN(left) && Number.isNaN(number));
  };
  switch (part.operator) {
    case "": return (values) => values.some((value) => String(value).toLowerCase().includes(wanted));
    case "~": {
      const expression = toExpression(part.value)!;
      return (values) => values.some((value) => expression.test(toText(value)));
    }
    case "=": return (values) => values.some(isEqual);
    // What is missing is neither; a run without tags is without this one.
    case "!=": return (values) => (values.length > 0 || part.field === "tag") && !values.some(isEqual);
    default: return (values) => values.some((value) => isOrdered(toNumber(value), part.operator, number!));
  }
}

function isOrdered(left: number | null, operator: string, right: number): boolean {
  if (left === null) return false;
  if (operator === "<") return left < right;
  if (operator === "<=") return left <= right;
  return operator === ">" ? left > right : left >= right;
}

// What a run has under this name; nothing if it is missing. Names are hostile: nothing here indexes an object unchecked.
function valuesOf(row: Row, field: string): unknown[] {
  if (!field) return [row.name, row.id, row.project, ...row.tags];
  if (field === "tag") return row.tags;
  if (field === "slurm" || field === "pod") return namesOfJob(row.job, field);
  const value = TEXTS.includes(field) || NUMBERS.includes(field) ? own(row as unknown as Record<string, unknown>, field)
    : field.startsWith("job.") ? own(row.job, field.slice(4))
    : field.startsWith("config.") ? own(row.config, field.slice(7))
    : field.startsWith("summary.") ? own(row.summary, field.slice(8))
    : own(row.config, field) ?? own(row.summary, field);
  return value === undefined || value === null ? [] : [value];
}

// A Slurm job by its id, as a task of an array (4700_3) or by the array's; a pod with its namespace or without.
function namesOfJob(job: Record<string, unknown>, field: "slurm" | "pod"): unknown[] {
  const array = String(job.array ?? "");
  const names = field === "slurm" ? [job.slurm, array, array.split("_")[0]] : [job.pod, job.pod && `${job.namespace ?? ""}/${job.pod}`];
  return names.filter(Boolean);
}

export function own(object: Record<string, unknown>, key: string): unknown {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}

function toNumber(value: unknown): number | null {
  if (typeof value === "number") return value;
  if (typeof value !== "string" || !NUMBER.test(value)) return null;
  const word = /^([+-]?)(nan|inf)/i.exec(value);
  if (!word) return Number(value);
  return word[2].toLowerCase() === "nan" ? NaN : word[1] === "-" ? -Infinity : Infinity;
}

function toText(value: unknown): string {
  return (typeof value === "string" ? value : JSON.stringify(value)).slice(0, MOST_TEXT);
}

export function toExpression(pattern: string): RegExp | null {
  try {
    return new RegExp(pattern, "i");
  } catch {
    return null;
  }
}
