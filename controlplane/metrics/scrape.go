package metrics

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Family is one metric that a Source fills.
type Family struct {
	// Name without the namespace, such as "instances".
	Name string
	Help string
	// Labels are the names of the labels.
	Labels []string
}

// Sample is one number with the values of the family's labels.
type Sample struct {
	Family string // its name
	Labels []string
	Value  float64
}

// Source is asked for numbers at every scrape.
type Source struct {
	// Name says in the log and in a metric which source has failed.
	Name     string
	Families []Family
	// Read returns samples of the families. It ends when ctx does.
	Read func(ctx context.Context) ([]Sample, error)
}

// scraper asks the sources. One scrape after the other: a source that is slow
// is not asked by several at once.
type scraper struct {
	ctx      context.Context //nolint:containedctx // of all scrapes: a collector is given none
	log      *slog.Logger
	sources  []Source
	families map[string]*prometheus.Desc
	bounds   map[string][]*bound // of the labels of a family
	failures *prometheus.CounterVec

	mu sync.Mutex
}

func newScraper(ctx context.Context, log *slog.Logger, sources []Source) *scraper {
	s := &scraper{
		ctx: ctx, log: log, sources: sources, families: map[string]*prometheus.Desc{}, bounds: map[string][]*bound{},
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "scrape_failures_total", Help: "Scrapes for which a source had no numbers.",
		}, []string{"source"}),
	}
	for _, src := range sources {
		s.failures.WithLabelValues(src.Name)
		for _, f := range src.Families {
			s.families[f.Name] = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", f.Name), f.Help, f.Labels, nil)
			for range f.Labels {
				s.bounds[f.Name] = append(s.bounds[f.Name], newBound(maxLabelValues))
			}
		}
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *scraper) Describe(ch chan<- *prometheus.Desc) {
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		ch <- s.families[name]
	}
	s.failures.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *scraper) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, scrapeTimeout)
	defer cancel()
	for _, src := range s.sources {
		samples, err := src.Read(ctx)
		if err != nil {
			s.failures.WithLabelValues(src.Name).Inc()
			s.log.WarnContext(ctx, "cannot read numbers for a scrape", "source", src.Name, "error", err)
			continue
		}
		s.send(ch, samples)
	}
	s.failures.Collect(ch)
}

// send hands the samples on. Those whose labels have become the same are added
// up, for a scrape with two of a kind is refused as a whole.
func (s *scraper) send(ch chan<- prometheus.Metric, samples []Sample) {
	type key struct{ family, labels string }
	sums := map[key]float64{}
	labels := map[key][]string{}
	for _, one := range samples {
		bounds, ok := s.bounds[one.Family]
		if !ok && s.families[one.Family] == nil || len(bounds) != len(one.Labels) {
			continue // a sample of no family says nothing
		}
		values := make([]string, len(one.Labels))
		for i, v := range one.Labels {
			values[i] = bounds[i].value(v)
		}
		k := key{one.Family, strings.Join(values, "\x00")}
		sums[k] += one.Value
		labels[k] = values
	}
	for k, sum := range sums {
		ch <- prometheus.MustNewConstMetric(s.families[k.family], prometheus.GaugeValue, sum, labels[k]...)
	}
}
