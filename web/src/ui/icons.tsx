// Line icons, 16 by 16.
const PATHS: Record<string, string> = {
  full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  image: "M2 3h12v10H2zM2 11l4-4 3 3 2-2 3 3M10.5 6h.01",
  table: "M2 3h12v10H2zM2 6.5h12M2 10h12M6.5 3v10",
  reset: "M3 8a5 5 0 1 0 1.6-3.7M3 2.5V5h2.5",
  edit: "M3 13l.8-3.2L10.6 3 13 5.4l-6.8 6.8zM9.2 4.4l2.4 2.4",
  earlier: "M10 3.5 5.5 8l4.5 4.5",
  pin: "M8 10v4M4.5 10h7L10 7.5V3H6v4.5zM5 3h6",
  overview: "M2 8h3l2-5 3 10 2-5h2",
  benchmark: "M2.5 11a5.5 5.5 0 1 1 11 0M8 11l3-4M2.5 13.5h11",
  findings: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14M5 7l1.5 1.5L9 5.5",
  training: "M2 3v11h12M4 5c3 6 5 6 9 6.5",
  rl: "M3 9a5 5 0 0 1 9-3M12 2.5V6H8.5M13 7a5 5 0 0 1-9 3M4 13.5V10h3.5",
  system: "M4 4h8v8H4zM6.5 1.5V4M9.5 1.5V4M6.5 12v2.5M9.5 12v2.5M1.5 6.5H4M1.5 9.5H4M12 6.5h2.5M12 9.5h2.5",
  media: "M2 3h12v10H2zM2 11l4-4 3 3 2-2 3 3M10.5 6h.01",
  alerts: "M8 2a4 4 0 0 0-4 4v3l-1.5 2.5h11L12 9V6a4 4 0 0 0-4-4zM6.5 13.5h3",
  logs: "M3 3h10M3 6.5h10M3 10h7M3 13.5h5",
  export: "M8 2v8M5 7l3 3 3-3M2.5 11v3h11v-3",
  runs: "M2 4h12M2 8h12M2 12h12",
  machines: "M2 2.5h12v4.5H2zM2 9h12v4.5H2zM4.5 4.8h.01M4.5 11.3h.01M8 4.8h3.5M8 11.3h3.5",
  fleet: "M2 2h3v3H2zM6.5 2h3v3h-3zM11 2h3v3h-3zM2 6.5h3v3H2zM6.5 6.5h3v3h-3zM11 6.5h3v3h-3zM2 11h3v3H2zM6.5 11h3v3h-3zM11 11h3v3h-3z",
  compare: "M3 13V7M6.5 13V3M10 13V9M13.5 13V5",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6 13 13M3 13l1.4-1.4M11.6 4.4 13 3",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  system_theme: "M2 3h12v8H2zM6 14h4M8 11v3",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.5 9h6l.5-9",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name] ?? ""} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
