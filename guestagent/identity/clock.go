package identity

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SetClock steps the machine's wall clock.
func SetClock(now time.Time) error {
	if y := now.Year(); y < 2020 || y > 2200 {
		return fmt.Errorf("cannot set the clock to %s: that is not now", now.UTC().Format(time.RFC3339))
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("cannot set the clock: %w", err)
	}
	return nil
}
