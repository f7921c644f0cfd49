// The machines of `serve --host`: which of them a run is of, and what to say of one that cannot be asked.
import type { MachineNow } from "../data/types.ts";
import { formatSpan } from "./format.ts";

// Keys of runs begin with the machine and a colon; a name may have a colon itself.
export function machineOf(key: string, names: readonly string[]): string {
  const found = names.filter((name) => key.startsWith(`${name}:`));
  return found.sort((a, b) => b.length - a.length)[0] ?? "";
}

// Why it is not up and since when; empty if it is, or if that is not known yet.
export function reasonOf(machine: MachineNow, now: number): string {
  if (machine.state === "up") return "";
  const heard = machine.heard === null ? "" : `last heard ${formatSpan(Math.max(now - machine.heard, 0))} ago`;
  return [machine.detail, heard].filter(Boolean).join(", ");
}

// The same with its state.
export function troubleOf(machine: MachineNow, now: number): string {
  const reason = reasonOf(machine, now);
  return machine.state === "up" ? "" : `${machine.state}${reason ? `: ${reason}` : ""}`;
}

// What is to be known about its numbers; empty if they are those of now.
export function remarkOf(machine: MachineNow): string {
  if (machine.state !== "up") return machine.heard === null ? "" : "showing its last known values";
  if (!machine.origin) return "no metrics: no agent is running there";
  return machine.current ? "" : "the agent there has stopped sampling";
}
