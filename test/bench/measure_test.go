package main

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		sorted []float64
		q      float64
		want   float64
	}{
		{[]float64{7}, .5, 7},
		{[]float64{7}, 1, 7},
		{[]float64{1, 2}, .5, 1.5},
		{[]float64{1, 2, 3}, .5, 2},
		{[]float64{1, 2, 3, 4, 5}, .25, 2},
		{[]float64{1, 2, 3, 4, 5}, .9, 4.6},
		{[]float64{1, 2, 3, 4, 5}, 0, 1},
		{[]float64{1, 2, 3, 4, 5}, 1, 5},
	} {
		if got := quantile(test.sorted, test.q); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("quantile(%v, %v) = %v, want %v", test.sorted, test.q, got, test.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("nothing has a median")
	}
	rapid.Check(t, func(t *rapid.T) {
		sorted := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 50).Draw(t, "samples")
		slices.Sort(sorted)
		low, high := rapid.Float64Range(0, 1).Draw(t, "q"), rapid.Float64Range(0, 1).Draw(t, "other q")
		if low > high {
			low, high = high, low
		}
		a, b := quantile(sorted, low), quantile(sorted, high)
		if a > b+1e-6 || a < sorted[0] || b > sorted[len(sorted)-1]+1e-6 {
			t.Fatalf("quantiles %v and %v of %v are %v and %v", low, high, sorted, a, b)
		}
	})
}

// TestRounds: arms take turns at being first, the first round does not count,
// and a sample that fails is counted and told, and leaves its round out of the
// comparison.
func TestRounds(t *testing.T) {
	var order []string
	calls := 0
	constant := func(name string, v float64) *arm {
		return &arm{name: name, measure: func(context.Context) (float64, error) {
			order = append(order, name)
			return v, nil
		}}
	}
	flaky := &arm{name: "c", measure: func(context.Context) (float64, error) {
		order = append(order, "c")
		if calls++; calls == 3 {
			return 0, errors.New("no luck")
		}
		return float64(calls), nil
	}}
	a, b := constant("a", 2), constant("b", 4)
	run := &bench{log: io.Discard}
	if err := run.rounds(t.Context(), "test", 6, []*arm{a, b, flaky}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abcbcacababcbcacababc" {
		t.Errorf("the order is %q", got)
	}
	leaders := map[string]int{}
	for i := 3; i < len(order); i += 3 {
		leaders[order[i]]++
	}
	if leaders["a"] != 2 || leaders["b"] != 2 || leaders["c"] != 2 {
		t.Errorf("first were %v", leaders)
	}
	s, err := flaky.summary()
	if err != nil || s.N != 5 || s.Failed != 1 || s.Median != 5 || !slices.Equal(s.Samples, []float64{2, 4, 5, 6, 7}) {
		t.Errorf("summary is %+v, %v", s, err)
	}
	r, err := ratio("c / b", flaky, b)
	if err != nil || r.N != 5 || r.Ratio != 1.25 || r.PerRound != 1.25 || r.Min != .5 || r.Max != 1.75 {
		t.Errorf("ratio is %+v, %v", r, err)
	}
	if r, err := ratio("a / b", a, b); err != nil || r.Ratio != .5 || r.N != 6 {
		t.Errorf("ratio is %+v, %v", r, err)
	}
	if len(run.failures) != 1 || run.failures[0] != "test: c: no luck" {
		t.Errorf("failures are %q", run.failures)
	}
}

// TestNothingMeasured: no number is made up for an arm without samples.
func TestNothingMeasured(t *testing.T) {
	broken := &arm{name: "broken", measure: func(context.Context) (float64, error) { return 0, nil }}
	fine := &arm{name: "fine", measure: func(context.Context) (float64, error) { return 1, nil }}
	run := &bench{log: io.Discard}
	if err := run.rounds(t.Context(), "test", 2, []*arm{broken, fine}); err != nil {
		t.Fatal(err)
	}
	var s Section
	err := s.add([]*arm{broken, fine}, pair{"broken / fine", broken, fine})
	if err == nil || len(s.Arms) != 1 || len(s.Ratios) != 0 {
		t.Errorf("section is %+v, %v", s, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run.rounds(ctx, "test", 2, []*arm{fine}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}
