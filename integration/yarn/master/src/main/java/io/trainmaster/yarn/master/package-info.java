/**
 * The elastic ApplicationMaster of Trainmaster's jobs.
 *
 * <p>{@link io.trainmaster.yarn.master.Fleet} is the state machine, without I/O or a clock: orders, containers and time
 * go in, {@link io.trainmaster.yarn.master.Action}s come out. {@link io.trainmaster.yarn.master.Master} is the loop
 * around it, between YARN and {@link io.trainmaster.yarn.master.Follower}, which hears the orders.
 */
package io.trainmaster.yarn.master;
