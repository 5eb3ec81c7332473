package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// The list that is read, and how often in one sample.
const (
	listRecords  = 10_000
	listPage     = 100
	listRequests = 100
)

// page is one answer of a list.
type page struct {
	uri    string
	header http.Header
	body   []byte
}

// quantileArm has measure take count times, and is their median; its twin is
// the 99th percentile.
func quantileArm(name string, count int, measure func(context.Context) ([]float64, error)) *arm {
	p99 := &arm{name: name + ": p99"}
	return &arm{name: name + ": p50", twin: p99, measure: func(ctx context.Context) (float64, error) {
		took, err := measure(ctx)
		if err == nil && len(took) != count {
			err = fmt.Errorf("%d were measured, want %d", len(took), count)
		}
		slices.Sort(took)
		p99.pending = quantile(took, .99)
		return quantile(took, .5), err
	}}
}

// lists measures pages of a long list against a handler that has the same
// bytes at hand.
func (b *bench) lists(ctx context.Context) (s Section, err error) {
	s = Section{Name: sectionList, Title: fmt.Sprintf("%d instance records, GET /api/v1/instances?limit=%d", listRecords, listPage)}
	r, err := b.startRecords(ctx, listRecords)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	all, err := r.walk(ctx, "", listRecords)
	if err != nil {
		return s, err
	}
	some, err := r.walk(ctx, "team=t3", (listRecords-1+teams-1-3)/teams) // the copies of which i % teams is 3
	if err != nil {
		return s, err
	}
	bare, err := serveBytes(ctx, slices.Concat(all, some))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, bare.close()) }()
	at := func(name, base string, pages []page) *arm {
		return quantileArm(name, listRequests, func(ctx context.Context) ([]float64, error) {
			return r.replay(ctx, base, pages, listRequests)
		})
	}
	ours, plain := at("sandboxd, a page", r.daemon.URL, all), at("bare handler, the same bytes", bare.url, all)
	chosen, plainChosen := at("sandboxd, label=team=t3", r.daemon.URL, some), at("bare handler, those bytes", bare.url, some)
	arms := []*arm{ours, plain, chosen, plainChosen}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	s.Notes = []string{
		fmt.Sprintf("Each sample is a quantile of %d requests, one after the other over one connection. A page has %d KiB.",
			listRequests, len(all[0].body)>>10),
		fmt.Sprintf("The selector matches %d of the records. The records are copies of one that the daemon wrote.", listPage*len(some)),
	}
	return s, s.add(withTwins(arms),
		pair{"page / bare handler: p50", ours, plain}, pair{"page / bare handler: p99", ours.twin, plain.twin},
		pair{"selector / bare handler: p50", chosen, plainChosen}, pair{"selector / bare handler: p99", chosen.twin, plainChosen.twin})
}

// walk reads a list page by page and wants so many instances in it.
func (r *records) walk(ctx context.Context, selector string, want int) (pages []page, err error) {
	query := url.Values{"limit": {strconv.Itoa(listPage)}}
	if selector != "" {
		query.Set("label", selector)
	}
	for got := 0; ; {
		p := page{uri: "/api/v1/instances?" + query.Encode()}
		if p.header, p.body, err = request(ctx, r.client, http.MethodGet, r.daemon.URL+p.uri, r.header, ""); err != nil {
			return nil, err
		}
		var list struct {
			Items []struct{ State string }
			Next  string `json:"next_cursor"`
		}
		if err := json.Unmarshal(p.body, &list); err != nil {
			return nil, fmt.Errorf("cannot read a list: %w", err)
		}
		for _, i := range list.Items {
			if i.State != "stopped" {
				return nil, fmt.Errorf("an instance is %q and not stopped", i.State)
			}
		}
		pages = append(pages, p)
		if got += len(list.Items); list.Next == "" {
			if got != want {
				err = fmt.Errorf("the list of %q has %d instances, want %d", selector, got, want)
			}
			return pages, err
		}
		query.Set("cursor", list.Next)
	}
}

// replay asks for pages one after the other, from the first again after the
// last, and returns how long each took, in seconds.
func (r *records) replay(ctx context.Context, base string, pages []page, count int) ([]float64, error) {
	took := make([]float64, 0, count)
	for i := range count {
		p := pages[i%len(pages)]
		begin := time.Now()
		_, body, err := request(ctx, r.client, http.MethodGet, base+p.uri, r.header, "")
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin).Seconds())
		if len(body) != len(p.body) {
			return nil, fmt.Errorf("an answer has %d bytes, and had %d", len(body), len(p.body))
		}
	}
	return took, nil
}

// byteServer answers with what it was given.
type byteServer struct {
	url    string
	server *http.Server
	ended  chan error // gets what Serve returns
}

// serveBytes serves pages by their address, in this process. Close it.
func serveBytes(ctx context.Context, pages []page) (*byteServer, error) {
	known := make(map[string]page, len(pages))
	for _, p := range pages {
		known[p.uri] = p
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &byteServer{url: "http://" + listener.Addr().String(), ended: make(chan error, 1)}
	s.server = &http.Server{ReadHeaderTimeout: readyLimit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := known[r.URL.RequestURI()]
		if !ok {
			http.NotFound(w, r)
			return
		}
		for _, name := range []string{"Content-Type", "Etag"} {
			w.Header()[name] = p.header[name]
		}
		_, _ = w.Write(p.body) // the client says what it lacks
	})}
	go func() { s.ended <- s.server.Serve(listener) }()
	return s, nil
}

func (s *byteServer) close() error {
	err := s.server.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
