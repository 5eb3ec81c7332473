package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
	"time"
)

// Report is everything that was measured, and on what.
type Report struct {
	Host     Host      `json:"host"`
	Sections []Section `json:"sections"`
	// Failures are the samples and arms that failed, in words.
	Failures []string `json:"failures,omitempty"`
}

// Section is one question and its answer.
type Section struct {
	Name   string    `json:"name"`
	Title  string    `json:"title"`
	Arms   []Summary `json:"arms"`
	Ratios []Ratio   `json:"ratios"`
	// Phases are the parts of the first arm, in order.
	Phases []Phase  `json:"phases,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// Phase is a part of an arm.
type Phase struct {
	Name   string  `json:"name"`
	Median float64 `json:"median"` // seconds
	// Share is the median of the phase's share in the whole.
	Share float64 `json:"share"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// add summarizes arms and their ratios; what has no sample is left out and
// returned as an error.
func (s *Section) add(arms []*arm, pairs ...pair) error {
	var errs []error
	for _, a := range arms {
		sum, err := a.summary()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.Arms = append(s.Arms, sum)
	}
	for _, p := range pairs {
		r, err := ratio(p.name, p.a, p.b)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.Ratios = append(s.Ratios, r)
	}
	return errors.Join(errs...)
}

// pair is two arms to compare: a over b.
type pair struct {
	name string
	a, b *arm
}

func (r *Report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *Report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.DiscardEmptyColumns)
	r.Host.write(t)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.Sections {
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", s.Name, s.Title); err != nil {
			return err
		}
		if err := s.write(w); err != nil {
			return err
		}
	}
	for _, f := range r.Failures {
		if _, err := fmt.Fprintf(w, "\nfailed: %s\n", f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Section) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(s.Arms) > 0 {
		fmt.Fprintf(t, "  arm\tn\tmedian\tp25 .. p75\tp90\tmin .. max\n")
	}
	for _, a := range s.Arms {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s .. %s\t%s\t%s .. %s\n", a.Name, count(a.N, a.Failed),
			a.text(a.Median), a.text(a.P25), a.text(a.P75), a.text(a.P90), a.text(a.Min), a.text(a.Max))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(s.Ratios) > 0 {
		fmt.Fprintf(t, "  ratio\tn\tof medians\tper round\tp25 .. p75\tmin .. max\n")
	}
	for _, r := range s.Ratios {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s .. %s\t%s .. %s\n", r.Name, r.N,
			factor(r.Ratio), factor(r.PerRound), factor(r.P25), factor(r.P75), factor(r.Min), factor(r.Max))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(s.Phases) > 0 {
		fmt.Fprintf(t, "  phase\tmedian\tshare\tmin .. max\n")
	}
	for _, p := range s.Phases {
		fmt.Fprintf(t, "  %s\t%s\t%4.1f %%\t%s .. %s\n", p.Name, seconds(p.Median), 100*p.Share, seconds(p.Min), seconds(p.Max))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range s.Notes {
		if _, err := fmt.Fprintf(w, "  %s\n", n); err != nil {
			return err
		}
	}
	return nil
}

func count(n, failed int) string {
	if failed == 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d (%d failed)", n, failed)
}

func (s Summary) text(v float64) string {
	if s.Unit != unitSeconds {
		return digits(v) + " " + s.Unit
	}
	return seconds(v)
}

func factor(v float64) string { return digits(v) + "x" }

// digits writes three digits that count, and never an exponent.
func digits(v float64) string {
	size := math.Abs(v)
	decimals := 0
	switch {
	case size == 0 || size >= 100:
	case size >= 10:
		decimals = 1
	case size >= 1:
		decimals = 2
	default:
		decimals = 3
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// seconds writes a duration with three digits that count.
func seconds(v float64) string {
	for _, u := range []struct {
		name string
		in   time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}} {
		if s := v / u.in.Seconds(); s >= 1 || s <= -1 {
			return digits(s) + " " + u.name
		}
	}
	return digits(v*1e6) + " µs"
}
