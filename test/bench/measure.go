package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// arm is one of several ways to do the same thing.
type arm struct {
	name string
	// measure takes one sample, in the arm's unit.
	measure func(ctx context.Context) (float64, error)
	// per is the unit of a rate; empty for seconds.
	per string
	// twin is another number of the same sample, which measure leaves in it.
	twin *arm

	byRound map[int]float64
	pending float64 // of a twin
	failed  int
}

// withTwins are the arms with what comes of the same samples, in order.
func withTwins(arms []*arm) (all []*arm) {
	for _, a := range arms {
		for ; a != nil; a = a.twin {
			all = append(all, a)
		}
	}
	return all
}

// rounds takes n samples of every arm, interleaved: what disturbs the host for
// a while disturbs all arms. Who comes first changes from round to round. The
// samples of round -1 are for warming up and count for nothing.
//
// A sample that fails is counted and told; an error means that ctx has ended.
func (b *bench) rounds(ctx context.Context, section string, n int, arms []*arm) error {
	for _, a := range withTwins(arms) {
		a.byRound = map[int]float64{}
	}
	for round := -1; round < n; round++ {
		for i := range arms {
			a := arms[(i+round+1)%len(arms)]
			v, err := b.sample(ctx, a)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				for _, twin := range withTwins([]*arm{a}) {
					twin.failed++
				}
				b.fail(fmt.Errorf("%s: %s: %w", section, a.name, err))
				continue
			}
			if round < 0 {
				continue
			}
			a.byRound[round] = v
			for twin := a.twin; twin != nil; twin = twin.twin {
				twin.byRound[round] = twin.pending
			}
		}
		b.progress(section, round, n, arms)
	}
	return nil
}

// sampleLimit bounds one sample. It is generous: a machine under emulation on
// a host that others use as well.
const sampleLimit = 5 * time.Minute

func (b *bench) sample(ctx context.Context, a *arm) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	v, err := a.measure(ctx)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0) || v <= 0) {
		err = fmt.Errorf("measured %v", v)
	}
	return v, err
}

// values are an arm's samples by size.
func (a *arm) values() []float64 {
	return slices.Sorted(maps.Values(a.byRound))
}

// quantile is the value below which a share q of the sorted samples lies,
// between two samples in proportion; NaN for none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

func median(sorted []float64) float64 { return quantile(sorted, 0.5) }

// Summary is an arm of the report.
type Summary struct {
	Name string `json:"name"`
	// Unit is "s", "MiB/s" or "1/s", of all numbers here.
	Unit   string  `json:"unit"`
	N      int     `json:"n"`
	Failed int     `json:"failed"`
	Median float64 `json:"median"`
	P25    float64 `json:"p25"`
	P75    float64 `json:"p75"`
	P90    float64 `json:"p90"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Samples are in the order of the rounds.
	Samples []float64 `json:"samples"`
}

const (
	unitSeconds  = "s"
	unitRate     = "MiB/s"
	unitRequests = "1/s"
)

func (a *arm) unit() string {
	if a.per != "" {
		return a.per
	}
	return unitSeconds
}

// summary needs at least one sample.
func (a *arm) summary() (Summary, error) {
	v := a.values()
	if len(v) == 0 {
		return Summary{}, fmt.Errorf("%s: no sample succeeded", a.name)
	}
	s := Summary{
		Name: a.name, Unit: a.unit(), N: len(v), Failed: a.failed, Median: median(v),
		P25: quantile(v, .25), P75: quantile(v, .75), P90: quantile(v, .9), Min: v[0], Max: v[len(v)-1],
	}
	for _, round := range slices.Sorted(maps.Keys(a.byRound)) {
		s.Samples = append(s.Samples, a.byRound[round])
	}
	return s, nil
}

// Ratio compares two arms.
type Ratio struct {
	Name string `json:"name"`
	// Ratio is that of the medians.
	Ratio float64 `json:"ratio"`
	// N counts the rounds in which both arms succeeded. What follows is of the
	// ratios within one round each, which a load that changes disturbs less.
	N        int     `json:"n"`
	PerRound float64 `json:"per_round"` // the median
	P25      float64 `json:"p25"`
	P75      float64 `json:"p75"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
}

// ratio is a over b.
func ratio(name string, a, b *arm) (Ratio, error) {
	var each []float64
	for round, v := range a.byRound {
		if w, ok := b.byRound[round]; ok {
			each = append(each, v/w)
		}
	}
	if len(each) == 0 {
		return Ratio{}, fmt.Errorf("%s: no round in which both succeeded", name)
	}
	slices.Sort(each)
	return Ratio{
		Name: name, Ratio: median(a.values()) / median(b.values()), N: len(each),
		PerRound: median(each), P25: quantile(each, .25), P75: quantile(each, .75), Min: each[0], Max: each[len(each)-1],
	}, nil
}
