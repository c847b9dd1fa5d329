//! Hosts, devices, rails and bottlenecks, by name and number.

use std::net::IpAddr;

use polyrail_core::path::class::{CLASSES_MAX, RailClass};
use toml::Spanned;

use super::{Builder, Checked, DEVICES_MAX, Device, HOSTS_MAX, RAILS_MAX, Rail};

impl Builder<'_> {
    pub(super) fn hosts(&mut self) -> Checked<()> {
        for host in &self.scenario.host {
            let name = host.name.get_ref().as_str();
            if name.is_empty() || name.contains(['/', '>', '*']) {
                return self.error(
                    &host.name,
                    format!("{name:?} cannot name a host: '/', '>' and '*' have a meaning"),
                );
            }
            let count = match &host.count {
                Some(count) => Some(self.within(count, 1, HOSTS_MAX, "count")?),
                None => None,
            };
            for number in 0..count.unwrap_or(1) {
                let number = count.map_or(String::new(), |_| number.to_string());
                let name = format!("{name}{number}");
                if self.hosts.iter().any(|(other, _)| *other == name) {
                    return self.error(&host.name, format!("there are two hosts {name:?}"));
                }
                self.hosts.push((name, host.numa));
            }
        }
        Ok(())
    }

    /// Hosts that a name means, by number.
    pub(super) fn some_hosts(&self, name: &Spanned<String>) -> Checked<Vec<usize>> {
        let Some(start) = name.get_ref().strip_suffix('*') else {
            return Ok(vec![self.host(name)?]);
        };
        let starts = |index: &usize| self.hosts[*index].0.starts_with(start);
        let found: Vec<_> = (0..self.hosts.len()).filter(starts).collect();
        match found.is_empty() {
            true => self.error(name, format!("there is no host {:?}", name.get_ref())),
            false => Ok(found),
        }
    }

    pub(super) fn host(&self, name: &Spanned<String>) -> Checked<usize> {
        match self
            .hosts
            .iter()
            .position(|(host, _)| host == name.get_ref())
        {
            Some(host) => Ok(host),
            None => self.error(name, format!("there is no host {:?}", name.get_ref())),
        }
    }

    pub(super) fn rate(&self, gbits: &Spanned<f64>) -> Checked<u64> {
        let rate = self.within(gbits, 0.001, 100_000.0, "rate_gbits_per_sec")?;
        Ok((rate * 125_000_000.0) as u64)
    }

    pub(super) fn devices(&mut self) -> Checked<()> {
        for device in &self.scenario.device {
            let mut addresses = 0..;
            for host in self.some_hosts(&device.host)? {
                self.devices_of(host, device, &mut addresses)?;
            }
        }
        Ok(())
    }

    /// One host's devices of a table. `addresses` says how far each is from the table's.
    fn devices_of(
        &mut self,
        host: usize,
        device: &crate::scenario::Device,
        addresses: &mut impl Iterator<Item = u32>,
    ) -> Checked<()> {
        if let Some(numa) = &device.numa {
            self.within(numa, 0, self.hosts[host].1.saturating_sub(1), "numa")?;
        }
        self.within(&device.queue_depth, 1, 4096, "queue_depth")?;
        if let Some(reads_max) = &device.reads_max {
            self.within(reads_max, 1, 4096, "reads_max")?;
        }
        let delay_us = device.delay_us;
        if !(0.0..=1_000_000.0).contains(&delay_us) {
            return self.error(
                &device.name,
                format!("delay_us is 0 to 1000000, not {delay_us}"),
            );
        }
        let count = match &device.count {
            Some(count) => Some(self.within(count, 1, DEVICES_MAX, "count")?),
            None => None,
        };
        let bytes_per_sec = self.rate(&device.rate_gbits_per_sec)?;
        for number in 0..count.unwrap_or(1) {
            let number = count.map_or(String::new(), |_| number.to_string());
            let name = format!("{}/{}{number}", self.hosts[host].0, device.name.get_ref());
            if device.name.get_ref().contains(['/', '>', '*'])
                || self.devices.iter().any(|other| other.name == name)
            {
                return self.error(
                    &device.name,
                    format!("device {name:?} is there already, or its name has '/', '>' or '*'"),
                );
            }
            self.devices.push(Device {
                name,
                host,
                numa: device.numa.as_ref().map(|numa| *numa.get_ref()),
                bytes_per_sec,
                delay_ns: (delay_us * 1_000.0) as u64,
                queue_depth: *device.queue_depth.get_ref(),
                work_bytes_max: device.work_bytes_max.max(1),
                reads_max: device
                    .reads_max
                    .as_ref()
                    .map_or(u16::MAX, |most| *most.get_ref()),
                covers: device.covers,
                address: device
                    .address
                    .as_ref()
                    .zip(addresses.next())
                    .map(nth_address),
            });
        }
        Ok(())
    }

    /// Devices that a name means, by number.
    pub(super) fn named(&self, name: &str) -> Vec<usize> {
        let fits = |device: &Device| match name.strip_suffix('*') {
            Some(start) => device.name.starts_with(start),
            None => device.name == name,
        };
        (0..self.devices.len())
            .filter(|index| fits(&self.devices[*index]))
            .collect()
    }

    pub(super) fn some_named(&self, name: &Spanned<String>) -> Checked<Vec<usize>> {
        let found = self.named(name.get_ref());
        if found.is_empty() {
            let known: Vec<_> = self
                .devices
                .iter()
                .map(|device| device.name.as_str())
                .take(8)
                .collect();
            return self.error(
                name,
                format!(
                    "there is no device {:?}; there are {} …",
                    name.get_ref(),
                    known.join(", ")
                ),
            );
        }
        Ok(found)
    }

    pub(super) fn rails(&mut self) -> Checked<()> {
        for rail in &self.scenario.rail {
            let (from, to) = (self.some_named(&rail.from)?, self.some_named(&rail.to)?);
            if !rail.all && from.len() != to.len() {
                let text = format!(
                    "{} devices against {}: list as many on both sides, or say all = true",
                    from.len(),
                    to.len()
                );
                return self.error(&rail.from, text);
            }
            let over = match &rail.over {
                Some(name) => Some(self.bottleneck(name)?),
                None => None,
            };
            for (i, from) in from.iter().copied().enumerate() {
                for (j, to) in to.iter().copied().enumerate() {
                    if !rail.all && i != j {
                        continue;
                    }
                    if self.devices[from].host == self.devices[to].host {
                        return self.error(&rail.to, "a rail joins two hosts");
                    }
                    if usize::from(rail.rank) >= polyrail_core::plan::PLAN_TRANSPORTS_MAX {
                        return self.error(&rail.to, "rank is 0 to 3");
                    }
                    if self.rails.len() == RAILS_MAX {
                        return self.error(&rail.from, format!("more than {RAILS_MAX} rails"));
                    }
                    if usize::from(rail.class) >= CLASSES_MAX {
                        return self.error(&rail.to, "class is 0 to 7");
                    }
                    self.rails.push(Rail {
                        from,
                        to,
                        rank: rail.rank,
                        class: RailClass(rail.class),
                        stands_in_for: match rail.spare {
                            true => Some(self.front_rail(rail, (from, to))?),
                            false => None,
                        },
                        over,
                    });
                }
            }
        }
        Ok(())
    }

    /// The number of the bottleneck of this name.
    fn bottleneck(&self, name: &Spanned<String>) -> Checked<usize> {
        let mut rows = self.scenario.bottleneck.iter();
        match rows.position(|row| row.name.get_ref() == name.get_ref()) {
            Some(bottleneck) => Ok(bottleneck),
            None => self.error(name, format!("there is no bottleneck {:?}", name.get_ref())),
        }
    }

    /// The rail, among those before it, that a spare between these devices stands in for.
    fn front_rail(
        &self,
        spare: &crate::scenario::Rail,
        (from, to): (usize, usize),
    ) -> Checked<usize> {
        let host = |device: usize| self.devices[device].host;
        let is_front = |rail: &Rail| {
            rail.stands_in_for.is_none()
                && (rail.from, host(rail.to)) == (from, host(to))
                && (rail.rank, rail.class) == (spare.rank, RailClass(spare.class))
        };
        let front = self.rails.iter().position(is_front);
        match front {
            Some(front) => Ok(front),
            None => self.error(
                &spare.from,
                "no rail before it that a spare could stand in for",
            ),
        }
    }

    pub(super) fn bottlenecks(&mut self) -> Checked<()> {
        for bottleneck in &self.scenario.bottleneck {
            let rate = self.rate(&bottleneck.rate_gbits_per_sec)?;
            let mut members = Vec::new();
            for member in &bottleneck.members {
                members.extend(self.some_named(member)?);
            }
            self.bottlenecks.push((rate, members));
        }
        Ok(())
    }
}

/// So many addresses further.
fn nth_address((first, further): (&Spanned<IpAddr>, u32)) -> IpAddr {
    match first.get_ref() {
        IpAddr::V4(first) => IpAddr::V4(first.to_bits().wrapping_add(further).into()),
        IpAddr::V6(first) => IpAddr::V6(first.to_bits().wrapping_add(further.into()).into()),
    }
}
