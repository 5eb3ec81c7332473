package fleet

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"
)

func TestJumpsOfTheClock(t *testing.T) {
	wall, at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Now()
	c := clockWatch{wall, at}
	for _, move := range []struct{ wall, at, jump time.Duration }{
		{time.Minute, time.Minute, 0},
		{time.Minute + time.Second, time.Minute, 0}, // it is being led slowly
		{time.Hour, time.Minute, 59 * time.Minute},
		{time.Minute, time.Minute, 0},
		{-time.Hour, time.Minute, -61 * time.Minute},
		{0, time.Hour, -time.Hour},
		{time.Minute, time.Minute, 0},
	} {
		wall, at = wall.Add(move.wall), at.Add(move.at)
		if got := c.jump(wall, at); got != move.jump {
			t.Errorf("%v on the wall, %v passed: a jump of %v, want %v", move.wall, move.at, got, move.jump)
		}
	}
}

// graces is a keeper of orphans alone.
type graces struct {
	Keeper
	all []Orphan
}

func (b *graces) Orphans(context.Context) ([]Orphan, error) { return slices.Clone(b.all), nil }

func (b *graces) SaveOrphans(_ context.Context, all []Orphan) error {
	b.all = all
	return nil
}

// TestGraceMovesWithTheClock: one that is set ahead takes nothing of it; what
// goes by hand only stays so.
func TestGraceMovesWithTheClock(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, jump := range []time.Duration{0, 48 * time.Hour, -20 * 365 * 24 * time.Hour} {
		b := &graces{all: []Orphan{{ID: "a", Since: at, RemoveAfter: at.Add(time.Hour)}, {ID: "b", Since: at}}}
		f := New(Config{Keeper: b, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err := f.putOff(t.Context(), jump); err != nil {
			t.Fatal(err)
		}
		if got := b.all[0].RemoveAfter; !got.Equal(at.Add(time.Hour+jump)) || !b.all[0].Since.Equal(at) || !b.all[1].RemoveAfter.IsZero() {
			t.Errorf("after a jump of %v: %+v", jump, b.all)
		}
	}
}
