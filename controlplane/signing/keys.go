package signing

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	dirName  = "keys"
	fileName = "card-signing.json"
)

// DefaultGrace is how long a retired key stays published and signs beside the
// new one: so cards that were fetched before still verify, and new ones do with
// a key set that was.
const DefaultGrace = 7 * 24 * time.Hour

// maxSigners bounds how many keys sign a card, and with them its length. Of
// more that are in their grace, the older are only published.
const maxSigners = 4

// stored is the file of keys: the one that signs, and those before it, the
// oldest first, until their grace ends.
type stored struct {
	Signing struct {
		ID      string    `json:"kid"`
		Seed    string    `json:"seed"` // base64url; the private key
		Created time.Time `json:"created"`
	} `json:"signing"`
	Retired []retired `json:"retired,omitempty"`
}

type retired struct {
	ID             string    `json:"kid"`
	Public         string    `json:"public"`         // base64url
	Seed           string    `json:"seed,omitempty"` // base64url; the private key of one that still signs
	PublishedUntil time.Time `json:"published_until"`
}

// Keys are the keys of one control plane. Safe for concurrent use. A rotation
// by another process is noticed.
type Keys struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu   sync.Mutex
	seen os.FileInfo // of the file as it was read
	ring ring
}

// ring is the file of keys, understood.
type ring struct {
	private ed25519.PrivateKey
	retired []retiredKey // the oldest first
}

type retiredKey struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey // nil if it is only published
	until   time.Time
}

// signers are the keys that sign a card: the current one, and those that a
// verifier may know instead whose key set is older, the newest first.
func (r ring) signers() []ed25519.PrivateKey {
	all := []ed25519.PrivateKey{r.private}
	for _, old := range slices.Backward(r.retired) {
		if old.private != nil && len(all) < maxSigners {
			all = append(all, old.private)
		}
	}
	return all
}

// Open reads the keys below a state directory, and makes the first one if
// there is none. now may be nil.
func Open(stateDir string, log *slog.Logger, now func() time.Time) (*Keys, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if now == nil {
		now = time.Now
	}
	k := &Keys{path: filepath.Join(stateDir, dirName, fileName), log: log, now: now}
	err := locked(stateDir, func(path string) error {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return err //nolint:wrapcheck // load says more about the same file
		}
		s, err := fresh(now())
		if err != nil {
			return err
		}
		return write(path, s)
	})
	if err != nil {
		return nil, keysFault(k.path, err)
	}
	if err := k.load(); err != nil {
		return nil, keysFault(k.path, err)
	}
	k.current() // destroys what has expired meanwhile
	return k, nil
}

// Rotation tells what Rotate did.
type Rotation struct {
	New, Old       string // key ids
	PublishedUntil time.Time
}

// Rotate makes a new signing key. The old one stays published and signs beside
// it for grace, so that every card verifies with a key set of any age that may
// still be in a cache; no grace revokes it at once. A running control plane
// notices by itself.
func Rotate(stateDir string, grace time.Duration, now time.Time) (r Rotation, err error) {
	path := filepath.Join(stateDir, dirName, fileName)
	err = locked(stateDir, func(path string) error {
		before, err := read(path)
		if err != nil {
			return err
		}
		ring, err := before.ring()
		if err != nil {
			return err
		}
		s, err := fresh(now)
		if err != nil {
			return err
		}
		r = Rotation{New: s.Signing.ID, Old: before.Signing.ID, PublishedUntil: now.Add(grace).UTC().Truncate(time.Second)}
		for _, old := range before.Retired {
			if old.PublishedUntil.After(now) {
				s.Retired = append(s.Retired, old)
			}
		}
		if grace > 0 {
			s.Retired = append(s.Retired, retired{
				ID: r.Old, Public: b64(publicOf(ring.private)), Seed: before.Signing.Seed, PublishedUntil: r.PublishedUntil,
			})
		}
		for i := range len(s.Retired) - (maxSigners - 1) {
			s.Retired[i].Seed = ""
		}
		return write(path, s)
	})
	if err != nil {
		return Rotation{}, keysFault(path, err)
	}
	return r, nil
}

// Signer signs cards with the current key, and with those whose grace lasts.
// jku is where the key set is served; empty names none.
func (k *Keys) Signer(jku string) Signer { return Signer{keys: k, jku: jku} }

// Signer signs cards.
type Signer struct {
	keys *Keys
	jku  string
}

// Sign returns the card in canonical form with its signatures, the current
// key's first: the same bytes for the same card until the key is rotated, or
// the grace of one ends.
func (s Signer) Sign(card []byte) ([]byte, error) {
	return sign(card, s.keys.current().signers(), s.jku)
}

// Set is the key set (RFC 7517) that cards verify with, the current key first.
func (k *Keys) Set() ([]byte, error) {
	r := k.current()
	set := jwkSet{Keys: []jwk{publicJWK(publicOf(r.private))}}
	for _, old := range r.retired {
		set.Keys = append(set.Keys, publicJWK(old.public))
	}
	return encode(set)
}

// current returns the keys that are not expired, read anew if their file has
// changed. Keys once read are good enough when it cannot be read. What expires
// is destroyed.
func (k *Keys) current() ring {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.path)
	if err == nil && (!os.SameFile(info, k.seen) || !info.ModTime().Equal(k.seen.ModTime())) {
		err = k.loadLocked()
	}
	if err != nil {
		k.log.Error("cannot read signing keys; going on with those read before", "error", err)
	}
	now := k.now()
	live := slices.DeleteFunc(slices.Clone(k.ring.retired), func(old retiredKey) bool { return !old.until.After(now) })
	if len(live) == len(k.ring.retired) {
		return k.ring
	}
	k.ring.retired = live
	if err := destroyExpired(filepath.Dir(filepath.Dir(k.path)), now); err != nil {
		k.log.Error("cannot destroy expired signing keys; they sign no more and stay in the file", "path", k.path, "error", err)
	}
	return k.ring
}

func (k *Keys) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loadLocked()
}

func (k *Keys) loadLocked() error {
	info, err := os.Stat(k.path) // before reading: a change in between is seen next time
	if err != nil {
		return fmt.Errorf("cannot find keys: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%q can be read by others (mode %04o)", k.path, info.Mode().Perm())
	}
	s, err := read(k.path)
	if err != nil {
		return err
	}
	r, err := s.ring()
	if err != nil {
		return err
	}
	k.seen, k.ring = info, r
	return nil
}

func fresh(now time.Time) (s stored, err error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return s, fmt.Errorf("cannot make key: %w", err)
	}
	s.Signing.ID, s.Signing.Seed, s.Signing.Created = thumbprint(public), b64(private.Seed()), now.UTC().Truncate(time.Second)
	return s, nil
}
