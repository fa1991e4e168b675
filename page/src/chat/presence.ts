/**
 * Whether somebody is here. Three things make a page miss time: it is hidden, the machine sleeps, the network goes.
 * Each of them ends in one `onReturn`, which is when connections are looked at.
 */

export interface Presence {
  /** The page came back: shown, woken, online. `awayMs` is how long nobody looked. */
  onReturn(awayMs: number): void;
  /** It has been hidden for a while and should give its connection back (a browser has six per host). */
  onLeave(): void;
}

const LEAVE_AFTER_MS = 10_000;
const TICK_MS = 2_000;
/** A timer that is this late was asleep. */
const SLEPT_MS = 8_000;

export function watchPresence(presence: Presence): void {
  let hiddenAt: number | null = document.hidden ? Date.now() : null;
  let leaving: ReturnType<typeof setTimeout> | undefined;
  let lastTick = Date.now();

  const back = (since: number) => {
    clearTimeout(leaving);
    presence.onReturn(Date.now() - since);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      hiddenAt = Date.now();
      leaving = setTimeout(() => presence.onLeave(), LEAVE_AFTER_MS);
    } else {
      back(hiddenAt ?? Date.now());
      hiddenAt = null;
    }
  });
  addEventListener("online", () => back(Date.now()));
  addEventListener("pageshow", (event) => event.persisted && back(lastTick));
  setInterval(() => {
    const late = Date.now() - lastTick > SLEPT_MS && !document.hidden;
    const since = lastTick;
    lastTick = Date.now();
    if (late) back(since);
  }, TICK_MS);
}
