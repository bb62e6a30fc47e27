// Formats of numbers, in one place, so that a unit looks the same on every page.

const digits = (value, most = 3) => {
  const size = Math.abs(value);
  const places = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : most;
  return value.toLocaleString("en", { maximumFractionDigits: places });
};

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export const number = (value, most) => (value === null || value === undefined ? "–" : digits(value, most));
export const percent = (share, places = 0) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(places)} %`);
export const plural = (count, word, words = `${word}s`) => `${whole(count)} ${count === 1 ? word : words}`;

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${digits(value * 1e9)} ns`;
  if (size < 1e-3) return `${digits(value * 1e6)} µs`;
  if (size < 1) return `${digits(value * 1e3)} ms`;
  if (size < 120) return `${digits(value)} s`;
  const sign = value < 0 ? "-" : "", near = Math.round(size), minutes = Math.round(size / 60), two = (part) => String(part).padStart(2, "0");
  if (near < 7200) return `${sign}${Math.floor(near / 60)} min ${two(near % 60)} s`;
  if (minutes < 2880) return `${sign}${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${digits(value / 86400)} d`;
}

export const nanoseconds = (value) => seconds(value === null || value === undefined ? value : value / 1e9);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${digits(value / size)} ${unit}`;
  return `${value} B`;
}

export const gbps = (value) => (value === null || value === undefined ? "–" : `${digits(value)} Gb/s`);

// Times are nanoseconds as text or BigInt; a double would lose the last digits.
export function clock(ns, { places = 0, date = false } = {}) {
  const total = BigInt(ns);
  const day = new Date(Number(total / 1_000_000n));
  if (total < 946684800n * 1_000_000_000n) return nanoseconds(Number(total)); // not a date: a prediction's own clock
  const fraction = places ? "." + String(((total % 1_000_000_000n) + 1_000_000_000n) % 1_000_000_000n).padStart(9, "0").slice(0, places) : "";
  const text = new Date(day.getTime() - (utc ? 0 : day.getTimezoneOffset() * 60_000)).toISOString();
  return `${date ? text.slice(0, 10) + " " : ""}${text.slice(11, 19)}${fraction} ${zoneOf(day)}`;
}

// Local time by default; a key changes to UTC, which is what logs and other people write.
let utc = false;
try { utc = localStorage.getItem("prism-utc") === "1"; } catch { /* storage may be off */ }
export function toggleZone() { utc = !utc; try { localStorage.setItem("prism-utc", utc ? "1" : "0"); } catch { /* as above */ } }
const zoneOf = (day) => (utc || day.getTimezoneOffset() === 0 ? "UTC" : new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(day).find((part) => part.type === "timeZoneName").value);

export function ago(ns) {
  if (BigInt(ns) < 946684800n * 1_000_000_000n) return clock(ns); // a clock of its own
  const passed = (Date.now() - Number(BigInt(ns) / 1_000_000n)) / 1000;
  if (passed < -60) return clock(ns, { date: true });
  if (passed < 2) return "now";
  if (passed < 120) return `${Math.round(passed)} s ago`;
  if (passed < 7200) return `${Math.round(passed / 60)} min ago`;
  if (passed < 172800) return `${Math.round(passed / 3600)} h ago`;
  return `${Math.round(passed / 86400)} d ago`;
}

export const words = (text) => text.replaceAll("_", " ").replace(/\b(gpus?|cpus?)\b/g, (word) => word.slice(0, 3).toUpperCase() + word.slice(3));

// The cost of GPU time, if the service was given a price.
let price = null, currency = "";
export const setPrice = (overview) => { price = overview.price_per_gpu_hour; currency = overview.currency; };
export const cost = (gpuSeconds, before = "") => (price === null || gpuSeconds === null || gpuSeconds === undefined ? "" : `${before}${currency}${number((gpuSeconds / 3600) * price)}`);
